"""URLs, listening addresses, durations and sizes as people write them."""

from __future__ import annotations

import pytest

from kvwatch.address import parse_address, parse_listen
from kvwatch.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "url", "netloc"),
    [
        ("localhost:8000", "http://localhost:8000/metrics", "localhost:8000"),
        ("http://h:8000/", "http://h:8000/metrics", "h:8000"),
        ("HTTPS://Engine.Example:443/a/metrics/?x=1#part", "https://engine.example/a/metrics/?x=1", "engine.example:443"),
        ("[::1]:8000/metrics", "http://[::1]:8000/metrics", "[::1]:8000"),
        ("http://h", "http://h/metrics", "h:80"),
        ("http://user:p%40ss@h:1/metrics", "http://h:1/metrics", "h:1"),
        ("http://bücher.example", "http://xn--bcher-kva.example/metrics", "xn--bcher-kva.example:80"),
    ],
)
def test_a_url_is_completed_and_normalised(text: str, url: str, netloc: str) -> None:
    """Scheme and /metrics may be left out; equal addresses become equal strings, without credentials."""
    address = parse_address(text)
    assert (address.url, address.netloc) == (url, netloc)
    assert parse_address(address.url) == parse_address(url)


def test_credentials_are_kept_apart() -> None:
    """They are decoded for the request and absent from everything that prints."""
    address = parse_address("http://user:p%40ss@h:1/metrics")
    assert address.userinfo == "user:p@ss"
    assert "user" not in repr(address) + address.url + address.place


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2001:db8::7:8000", "brackets, as in http://[2001:db8::7]:8000"),
        ("http://::1:8000/metrics", "brackets"),
        ("http://[::1", "is no URL"),
        ("http://[fe80::zz]/", "is no URL"),
        ("ftp://h/metrics", "neither http nor https"),
        ("http://", "names no host"),
        ("", "names no host"),
        ("http://h:0/", "1 to 65535"),
        ("http://h:70000/", "1 to 65535"),
        ("http://h:port/", "1 to 65535"),
        ("http://a..b/", "host name"),
        ("${ENGINE_URL}", "host name"),
        ("http://h/a b", "space"),
        ("http://user:sec/ret@h/", "%2F"),
        ("user:secret@h:port", "1 to 65535"),
        ("http://h:port/?key=secret", "1 to 65535"),
        ("http://user:sec?ret@h/", "%3F"),
    ],
)
def test_what_is_no_url_is_refused_with_a_hint_and_without_secrets(text: str, words: str) -> None:
    """The sentence says what to write; whatever may be a password in the text is left out of it."""
    with pytest.raises(ValueError, match=r"is no URL to scrape") as caught:
        parse_address(text)
    assert words in str(caught.value)
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[::]:9477", ("::", 9477)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        (":9477", ("::", 9477)),
        ("9477", ("::", 9477)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_listening_addresses(text: str, expected: tuple[str, int]) -> None:
    """Host and port; without a host it is every address."""
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "localhost", "::1:9477", "[::1]", "h:65536", "h:-1", "h:", "http://h:80", "h:٣"])
def test_what_is_no_listening_address(text: str) -> None:
    """Anything ambiguous is refused with the forms that are not."""
    with pytest.raises(ValueError, match=r"write \[::\]:9477"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15", 15), ("15s", 15), ("2m", 120), ("1h", 3600), ("500ms", 0.5), (" 1.5 s ", 1.5), ("0", 0), ("1d", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    """A bare number is seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 parsec", "1h30", "nan", "inf", "1e3", "٣s", "400d"])
def test_what_is_no_duration(text: str) -> None:
    """Nothing negative, endless or unclear is a duration."""
    with pytest.raises(ValueError, match=r"duration|longer"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("50GB", 50 * 10**9), ("50GiB", 50 * 2**30), ("50Gi", 50 * 2**30), ("64 MiB", 2**26), ("1.5KiB", 1536), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    """GB is decimal and GiB binary; they differ by 7 %."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "50G", "50gib", "1e9", "fifty"])
def test_what_is_no_size(text: str) -> None:
    """A unit that could be either is refused."""
    with pytest.raises(ValueError, match="write 1024, 50GB or 50GiB"):
        parse_size(text)
