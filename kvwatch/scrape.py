"""One GET of one target: all of its body in time and within the limit, or the reason why not.

The only file that knows ``requests``.
"""

from __future__ import annotations

import base64
import functools
import logging
import re
import ssl
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests
from requests.adapters import HTTPAdapter
from requests.cookies import RequestsCookieJar
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.connectionpool import ConnectionPool, HTTPConnectionPool
from urllib3.exceptions import HTTPError

from kvwatch import __version__
from kvwatch.address import Address, parse_address
from kvwatch.content import CorruptError, TooLargeError, decode
from kvwatch.failure import ScrapeFailure, explain, status_failure
from kvwatch.target import Target, Tls
from kvwatch.wire import BoundedConnection, BoundedTlsConnection, Exchange

__all__ = ["Client", "ScrapeFailure"]

_HEADERS = {
    "User-Agent": f"kvwatch/{__version__}",
    # OpenMetrics is welcome but not named: prometheus_client/exposition.py takes it whenever it is, whatever its weight.
    "Accept": "text/plain;version=0.0.4, */*;q=0.1",
    "Accept-Encoding": "gzip",
}
_REDIRECTS = (301, 302, 303, 307, 308)
_OK = 200
_CHUNK_BYTES = 1 << 16
_LONGEST_TOKEN = 1 << 14
_TOKEN = re.compile(rf"[\x21-\x7e]{{1,{_LONGEST_TOKEN}}}")

# urllib3 logs the headers it cannot read as a warning with a traceback; what matters of that is in our failures.
logging.getLogger("urllib3").setLevel(logging.CRITICAL)


class Client:
    """Scrapes one target over a connection that is kept open. Not thread safe: one client per target and turn."""

    def __init__(self, target: Target, *, limit_bytes: int) -> None:
        """``limit_bytes`` counts decompressed bytes of one answer. Raises ValueError when the target's URL is none."""
        self._target = target
        self._address = parse_address(target.url)
        self._limit_bytes = limit_bytes
        self._exchange = Exchange()
        self._session = _Session()
        self._session.trust_env = False  # no proxies, no .netrc, no CA variables
        self._session.headers.clear()
        self._session.headers.update(_HEADERS)
        self._session.cookies = RequestsCookieJar(DefaultCookiePolicy(allowed_domains=[]))
        self._session.mount("http://", _Adapter(self._exchange, target.tls))
        self._session.mount("https://", _Adapter(self._exchange, target.tls))

    def close(self) -> None:
        """Close the kept connection; the client can be used again."""
        self._session.close()

    def get(self, path_or_url: str, *, timeout: float) -> bytes:
        """The decompressed body of a page, never empty and never a part of it.

        A path is taken beside the target's own ``/metrics``, behind the same gateway prefix. ``timeout`` seconds are for everything from
        the name lookup to the last byte. Raises ScrapeFailure for whatever can go wrong out there.
        """
        address = self._at(path_or_url)
        self._exchange.begin(address.place, timeout=timeout, most=self._limit_bytes)
        try:
            response = self._ask(address)
            if response.status_code in _REDIRECTS:
                response = self._ask(self._moved(address, response))
            return self._body(response)
        except (OSError, HTTPError, HTTPException) as error:
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> ScrapeFailure:
        failure = explain(error, self._exchange.place, answered=self._exchange.received > 0)
        if failure.error.reason == "tls":
            self.close()  # so that a CA file that was replaced is read again
        return failure

    def _at(self, path_or_url: str) -> Address:
        if path_or_url.startswith("/"):
            return parse_address(self._address.origin + self._address.prefix + path_or_url)
        return parse_address(path_or_url)

    def _ask(self, address: Address) -> requests.Response:
        """Send the request; once more when it was sent on a kept connection that the server was just closing."""
        request = self._session.prepare_request(requests.Request("GET", address.url, headers=self._authorization(address)))
        send = functools.partial(self._session.send, request, stream=True, allow_redirects=False)
        self._exchange.ask()
        try:
            return send(timeout=self._exchange.left())
        except requests.ConnectionError:
            if self._exchange.fresh or self._exchange.received:
                raise
        return send(timeout=self._exchange.left())

    def _authorization(self, address: Address) -> Mapping[str, str]:
        """The header that proves who asks; nothing for any other host than the target's own."""
        if address.origin != self._address.origin:
            return {}
        if self._target.bearer_token_file is not None:
            return {"Authorization": f"Bearer {_token(self._target.bearer_token_file)}"}
        if self._target.userinfo is not None:
            return {"Authorization": f"Basic {base64.b64encode(self._target.userinfo.encode()).decode()}"}
        return {}

    def _moved(self, address: Address, response: requests.Response) -> Address:
        """Where a redirect leads, when it stays on the same server."""
        location = response.headers.get("Location", "")
        with response:
            if response.headers.get("Content-Length") == "0":
                response.raw.read(1)  # there is nothing; to have read it keeps the connection
        place = self._exchange.place
        if not location:
            raise ScrapeFailure("redirect", f"{place} redirects to nowhere: correct the url")
        try:
            moved = parse_address(urljoin(address.url, location))
        except ValueError:
            raise ScrapeFailure("redirect", f"{place} redirects to what is no URL: correct the url") from None
        if moved.origin != address.origin:
            raise ScrapeFailure("redirect", f"{place} redirects to {moved.origin}: write that in the url if it is the engine")
        return moved

    def _body(self, response: requests.Response) -> bytes:
        place = self._exchange.place
        with response:
            if response.status_code in _REDIRECTS:
                raise ScrapeFailure("redirect", f"{place} redirects more than once: write the final address in the url")
            if response.status_code != _OK:
                raise status_failure(place, response.status_code, self._target.bearer_token_file)
            self._exchange.phase = "for the rest of its answer"
            try:
                body = decode(self._chunks(response), response.headers.get("Content-Encoding", ""), self._limit_bytes)
            except TooLargeError:
                raise self._exchange.too_large() from None
            except CorruptError as error:
                raise ScrapeFailure("malformed", f"{place} sent a body that is {error}: see what proxy changes it") from None
        if not body or body.isspace():
            raise ScrapeFailure("empty", f"{place} answered with an empty body: see whether that is the engine and its metrics are on")
        return body

    def _chunks(self, response: requests.Response) -> Iterator[bytes]:
        """The body as it is on the wire."""
        try:
            yield from response.raw.stream(_CHUNK_BYTES, decode_content=False)
        except ValueError as error:  # a chunk of negative size
            raise explain(error, self._exchange.place, answered=True) from None


class _Session(requests.Session):
    """A session that follows no redirect by itself: it would read the redirect's body without any limit."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Nowhere."""


class _Adapter(HTTPAdapter):
    """Pools whose connections keep to an exchange and judge certificates as the target says."""

    def __init__(self, exchange: Exchange, tls: Tls) -> None:
        self._exchange, self._tls = exchange, tls
        self._context: ssl.SSLContext | None = None
        self._pools: set[ConnectionPool] = set()
        super().__init__(pool_connections=2, pool_maxsize=1)

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> ConnectionPool:  # noqa: ANN401  as requests calls it
        """Give the pool that makes our connections."""
        pool = super().get_connection_with_tls_context(*arguments, **options)
        if isinstance(pool, HTTPConnectionPool):
            kind = BoundedTlsConnection if pool.scheme == "https" else BoundedConnection
            pool.ConnectionCls = functools.partial(kind, self._exchange)  # type: ignore[assignment]  # the pool only calls it
        self._pools.add(pool)
        return pool

    def build_connection_pool_key_attributes(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  as requests calls it
        """Name the host, and how its certificate is judged."""
        host, _ = super().build_connection_pool_key_attributes(*arguments, **options)
        if host["scheme"] != "https":
            return host, {}
        self._context = self._context or _trust(self._tls)
        return host, {"ssl_context": self._context, "server_hostname": self._tls.server_name}

    def cert_verify(self, *_: object) -> None:
        """Add nothing: the context decides."""

    def close(self) -> None:
        """Drop trust and connections; urllib3 alone would close these when the garbage collector comes."""
        super().close()
        self._context = None
        while self._pools:
            self._pools.pop().close()


def _trust(tls: Tls) -> ssl.SSLContext:
    """Whom to trust; raises ScrapeFailure when the CA file cannot be read."""
    if not tls.insecure_skip_verify and tls.ca_file is None:
        return _public_trust()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:
        why = "no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise ScrapeFailure("tls", f"cannot use tls.ca_file {tls.ca_file} ({why}): name a file of PEM certificates") from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 sets it, and many private CAs fail it
    return context


@functools.cache
def _public_trust() -> ssl.SSLContext:
    """What the system trusts, and requests; loading takes long enough to do it once."""
    context = ssl.create_default_context()
    context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)
    return context


def _token(path: str) -> str:
    """The token in a file; raises ScrapeFailure when there is none. Nothing of the file's content is ever shown."""
    try:
        with Path(path).open("rb") as file:
            token = file.read(_LONGEST_TOKEN + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise ScrapeFailure("refused", f"not asked, for bearer_token_file {path} cannot be read ({why}): correct it") from None
    if not _TOKEN.fullmatch(token):
        raise ScrapeFailure("refused", f"not asked, for bearer_token_file {path} holds no token: write one into it, alone on one line")
    return token
