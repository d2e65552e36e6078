"""Why a scrape failed, as one of a closed set of reasons and in one sentence: what, where, what to do.

No sentence quotes what the server or an exception said in free text: it could hold anything.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from http import HTTPStatus

from kvwatch.model import Reason, ScrapeError

_TLS_ALERT = "\x15\x03"  # what a TLS server answers to plain HTTP


class ScrapeFailure(Exception):
    """An expected failure of one scrape."""

    def __init__(self, reason: Reason, detail: str) -> None:
        """Carry the reason and its sentence as ``error``."""
        super().__init__(detail)
        self.error = ScrapeError(reason, detail)


def status_failure(place: str, status: int, token_file: str | None) -> ScrapeFailure:
    """The server answered, but not with 200."""
    try:
        said = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        said = str(status)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        advice = f"the token in {token_file} was not accepted: correct bearer_token_file" if token_file else "set bearer_token_file"
    elif status == HTTPStatus.NOT_FOUND:
        advice = "correct the path of the url (/metrics), or start the engine with its metrics on (SGLang: --enable-metrics)"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        advice = "the engine or a proxy before it is failing or still starting: see its log"
    else:
        advice = "correct the url"
    return ScrapeFailure("http_status", f"{place} answered {said}: {advice}")


def explain(error: BaseException, place: str, *, answered: bool) -> ScrapeFailure:
    """Classify what the client library raised; ``answered`` says whether any byte of an answer had come."""
    causes = tuple(_causes(error))
    if any(isinstance(c, TimeoutError) for c in causes):
        return ScrapeFailure("timeout", f"{place} does not take the connection in time: see what keeps it busy, or raise timeout")
    tls = next((detail for cause in causes if (detail := _tls_detail(cause, place)) is not None), None)
    if tls is not None:
        return ScrapeFailure("tls", tls)
    if answered:
        return ScrapeFailure("malformed", f"{place} {_what_broke(causes)}")
    if any(isinstance(c, ConnectionError) for c in causes):
        return ScrapeFailure("refused", f"{place} closed the connection without an answer: see whether the engine is alive, or wants https")
    why = next((c.strerror for c in causes if isinstance(c, OSError) and c.strerror), type(causes[-1]).__name__)
    return ScrapeFailure("refused", f"cannot ask {place} ({why}): correct its url or the proxy on the way")


def _tls_detail(cause: BaseException, place: str) -> str | None:
    """What is wrong with the TLS of that place, when that is what the exception is about."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = cause.verify_message.rstrip(".")
        if "match" in why:
            return f"the certificate of {place} is another's ({why}): set tls.server_name to its name (tls.ca_file sets whom to trust)"
        return f"the certificate of {place} is not trusted ({why}): set tls.ca_file to the certificate of the CA that signed it"
    if isinstance(cause, ssl.SSLError):
        why = (cause.reason or "connection lost").replace("_", " ").lower()
        return f"no TLS with {place} ({why}): see whether that port speaks https, and set tls.ca_file for a private CA"
    if isinstance(cause, http.client.BadStatusLine) and str(cause.args[0]).startswith(_TLS_ALERT):
        return f"{place} speaks TLS: write https:// in its url (and set tls.ca_file for a private CA)"
    return None


def _what_broke(causes: tuple[BaseException, ...]) -> str:
    """How an answer that had begun went wrong, as the end of a sentence."""
    if any(isinstance(c, (http.client.BadStatusLine, http.client.UnknownProtocol)) for c in causes):
        return "does not answer in HTTP: correct the port of the url"
    if any(isinstance(c, http.client.IncompleteRead) or (isinstance(c, OSError) and c.errno) for c in causes):
        return "broke off in the middle of its answer: see the log of the engine or of a proxy before it"
    return "sent an answer that breaks the rules of HTTP: see what serves that port"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything it was raised from, outermost first."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
