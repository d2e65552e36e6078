"""Where to scrape and where to listen: URLs and HOST:PORT as people write them.

The password of a URL leaves it here: ``Address.url`` can be printed, ``Address.userinfo`` cannot.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_METRICS = "/metrics"
_BARE_IPV6 = re.compile(r"[^\[\]/]*:[^\[\]/]*:[^\[\]/]*")
_HOST = re.compile(r"[a-z0-9._-]+")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")


class ListenError(Exception):
    """The address cannot be listened on; the message is one line for the person who chose it."""


@dataclass(frozen=True, slots=True)
class Address:
    """An absolute http or https URL in parts: host without brackets, path with its slash, query without its mark."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    userinfo: str | None = field(default=None, repr=False)
    """``user:password``, decoded; never printed."""

    @property
    def netloc(self) -> str:
        """``host:port``, an IPv6 host in brackets: the default name of a target."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port: what a token may be sent to."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def place(self) -> str:
        """The URL as an error message shows it: a query may hold a secret, so it stays out."""
        return f"{self.origin}{self.path}"

    @property
    def url(self) -> str:
        """The URL without credentials and without a default port, so that equal addresses are equal strings."""
        netloc = self.netloc.removesuffix(f":{_DEFAULT_PORTS[self.scheme]}")
        return f"{self.scheme}://{netloc}{self.path}" + (f"?{self.query}" if self.query else "")

    @property
    def prefix(self) -> str:
        """What precedes ``/metrics`` in the path: where a gateway serves one of several engines."""
        return self.path.removesuffix("/").removesuffix(_METRICS) if self.path.removesuffix("/").endswith(_METRICS) else ""


def parse_address(text: str) -> Address:
    """Read ``http://host:8000/metrics``, ``host:8000`` or ``[::1]:8000``; an empty path becomes ``/metrics``.

    Raises ValueError with a sentence that says what to write instead and shows no credentials.
    """
    text = text.strip()
    written = text if "://" in text else f"http://{text}"
    shown = re.sub(r"(?<=://).*@", "", written if "@" in text else text).partition("?")[0][:200]
    try:
        if _UNPRINTABLE.search(text):
            raise ValueError("there is a space or a control character in it")  # noqa: TRY301  one place names the URL
        return _address(urlsplit(written))
    except ValueError as error:
        why = "the host name is not valid" if isinstance(error, UnicodeError) else error
        msg = f"'{shown}' is no URL to scrape: {why}"
        raise ValueError(msg) from None


def _address(parts: SplitResult) -> Address:
    if parts.scheme not in _DEFAULT_PORTS:
        msg = f"'{parts.scheme}' is neither http nor https"
        raise ValueError(msg)
    if "@" in parts.path + parts.query + parts.fragment:
        raise ValueError("a '/', '?' or '#' in its password is written %2F, %3F or %23")
    place = parts.netloc.rpartition("@")[2]
    if _BARE_IPV6.fullmatch(place):
        raise ValueError("an IPv6 address needs brackets, as in http://[2001:db8::7]:8000/metrics")
    if not parts.hostname:
        raise ValueError("it names no host")
    user = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    path = parts.path if parts.path not in ("", "/") else _METRICS
    return Address(parts.scheme, _host(parts.hostname), _port(parts), path, parts.query, user)


def _port(parts: SplitResult) -> int:
    """The port written or implied; the text of urllib's own error could be part of a password."""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("its port is no number from 1 to 65535") from None
    return port or _DEFAULT_PORTS[parts.scheme]


def _host(host: str) -> str:
    """The host in ASCII; ValueError when it is none."""
    if ":" in host:
        ipaddress.IPv6Address(host.partition("%")[0])
        return host
    name = host.encode("idna").decode("ascii").lower()
    if not _HOST.fullmatch(name):
        raise ValueError("the host name is not valid")
    return name


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of ``[::]:9477``, ``127.0.0.1:9477``, ``:9477`` or ``9477``; without a host all addresses, ``::``.

    Raises ValueError with a sentence that says what to write instead.
    """
    host, _, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host_ok = bracketed or not re.search(r"[\[\]:/@\s]", host)
    if not host_ok or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:  # noqa: PLR2004  the highest port there is
        msg = f"'{text[:80]}' is no address to listen on: write [::]:9477, 127.0.0.1:9477, :9477 or 9477"
        raise ValueError(msg)
    return host.strip("[]") or "::", int(port)
