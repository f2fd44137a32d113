"""Durations, sizes, addresses and URLs."""

from __future__ import annotations

import pytest

from gateway.settings.units import (
    AUTO,
    Address,
    StreamAddress,
    Url,
    check_mode,
    parse_address,
    parse_duration,
    parse_share,
    parse_size,
    parse_stream_address,
    parse_url,
    parse_workers,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0.0),
        ("250ms", 0.25),
        ("100us", 0.0001),
        ("1.5s", 1.5),
        ("2m", 120.0),
        ("1h", 3600.0),
    ],
)
def test_reads_durations(text: str, seconds: float) -> None:
    """A number with a unit is read as seconds."""
    assert seconds == pytest.approx(parse_duration(text))


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1S", "1e3s", "\u0665s", "1s\n"])
def test_rejects_other_durations(text: str) -> None:
    """The error has the expected form."""
    with pytest.raises(
        ValueError, match="is not a duration: expected a number and us, ms, s, m or h"
    ):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("16MiB", 16 * 1024 * 1024),
        ("64kB", 64_000),
        ("1GiB", 1 << 30),
        ("7B", 7),
    ],
)
def test_reads_sizes(text: str, size: int) -> None:
    """A whole number, with or without a unit, is read as bytes."""
    assert size == parse_size(text)


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("256", 256), ("auto", AUTO)])
def test_reads_numbers_of_workers(text: str, number: int) -> None:
    """A number is read as it is, and `auto` means one for each core."""
    assert number == parse_workers(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "257", "2.0", "all", "\uff12"])
def test_rejects_other_numbers_of_workers(text: str) -> None:
    """Zero, more than 256 and other text are rejected; the error has the expected form."""
    with pytest.raises(ValueError, match="is not a number of workers: expected 1 to 256, or auto"):
        parse_workers(text)


@pytest.mark.parametrize("text", ["", "MiB", "1.5MiB", "-1", "1 MiB", "1mib", "1_000", "\uff11"])
def test_rejects_other_sizes(text: str) -> None:
    """The error has the text."""
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("8000", Address("127.0.0.1", 8000)),
        (":8000", Address("", 8000)),
        ("*:8000", Address("", 8000)),
        ("[::1]:0", Address("::1", 0)),
        ("some-host.example:65535", Address("some-host.example", 65535)),
    ],
)
def test_reads_addresses(text: str, address: Address) -> None:
    """A port alone means this machine only. An empty host or a star means every address."""
    assert address == parse_address(text)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:65536", "::1:80", "a b:1", "h:-1"])
def test_rejects_other_addresses(text: str) -> None:
    """The error has an example."""
    with pytest.raises(ValueError, match="is not an address: expected HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.1.2.3:1"])
def test_recognises_loopback_addresses(text: str) -> None:
    """An address that only this machine can reach is a loopback address."""
    assert parse_address(text).is_loopback


@pytest.mark.parametrize("text", ["0.0.0.0:1", ":1", "[::]:1", "example.com:1"])
def test_recognises_addresses_beyond_loopback(text: str) -> None:
    """An address that other machines can reach is not a loopback address."""
    assert not parse_address(text).is_loopback


def test_addresses_round_trip() -> None:
    """An IPv6 address is written in brackets."""
    assert [str(parse_address(text)) for text in ("[::1]:80", "a:1")] == ["[::1]:80", "a:1"]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("oip+grpc://127.0.0.1:8001", Url("oip", "grpc", "127.0.0.1", 8001)),
        ("oip+http://host", Url("oip", "http", "host", 8000)),
        ("http://host:80", Url("oip", "http", "host", 80)),
        ("grpc://host", Url("oip", "grpc", "host", 8001)),
        ("oip+http://[::1]:80/a/b/", Url("oip", "http", "::1", 80, "/a/b")),
        ("grps+brpc://host:7081", Url("grps", "brpc", "host", 7081)),
        ("https://host/v2", Url("oip", "http", "host", 443, "/v2", tls=True)),
        ("grpcs://host", Url("oip", "grpc", "host", 443, tls=True)),
        ("HTTPS://Host", Url("oip", "http", "Host", 443, tls=True)),
        ("Oip+GRPCS://host:1", Url("oip", "grpc", "host", 1, tls=True)),
        ("trtis+https://host:8000", Url("trtis", "http", "host", 8000, tls=True)),
        ("graphpipe+tls://host:9000", Url("graphpipe", "tcp", "host", 9000, tls=True)),
        ("grps+brpcs://host:7081", Url("grps", "brpc", "host", 7081, tls=True)),
        ("graphpipe+tcp://[::1]:9000", Url("graphpipe", "tcp", "::1", 9000)),
        ("graphpipe+unix:///run/g.sock", Url("graphpipe", "unix", "", 0, socket="/run/g.sock")),
        ("tfs+grpc+unix:///run/t.sock", Url("tfs", "grpc", "", 0, socket="/run/t.sock")),
        ("grps+brpc+unix:///g", Url("grps", "brpc", "", 0, socket="/g")),
        ("HTTP+unix:///run/A.sock", Url("oip", "http", "", 0, socket="/run/A.sock")),
    ],
)
def test_reads_urls(text: str, url: Url) -> None:
    """A URL names protocol and carrier. `http` and `grpc` alone mean Open Inference."""
    assert url == parse_url(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not an upstream URL"),
        ("127.0.0.1:8001", "is not an upstream URL"),
        ("oip+http://user:secret@host", "is not an upstream URL"),
        ("oip+http://host/?q", "is not an upstream URL"),
        ("oip://host:80", r"names no carrier: expected PROTOCOL\+CARRIER://, as in oip\+http://"),
        ("https+http://host:80", r"begins with a carrier: .* as in oip\+https://"),
        ("grpc+tls://host:80", r"begins with a carrier: .* as in oip\+grpc://"),
        ("ws://host:80", r"names no carrier: expected PROTOCOL\+CARRIER://, as in oip\+http://"),
        ("graphpipe+tls://host", "has no valid port: expected 1 to 65535"),
        ("grps+brpc://host", "has no valid port: expected 1 to 65535"),
        ("graphpipe+tcp://host", "has no valid port: expected 1 to 65535"),
        ("graphpipe+unix://", "is not a unix socket: expected unix:/PATH"),
        ("graphpipe+unix://run/g.sock", "is not a unix socket: expected unix:/PATH"),
        ("unix:///run/g.sock", "is not an upstream URL"),
        ("oip+https+unix:///run/g.sock", r"is not an upstream URL: .* or PROTOCOL\+CARRIER\+unix"),
        ("oip+http+unix://run/g.sock", "is not a unix socket: expected unix:/PATH"),
        ("oip+http://host:0", "has no valid port: expected 1 to 65535"),
        ("oip+http://host:65536", "has no valid port: expected 1 to 65535"),
    ],
)
def test_rejects_other_urls(text: str, message: str) -> None:
    """The error has the reason."""
    with pytest.raises(ValueError, match=message):
        parse_url(text)


def test_writes_urls_in_full() -> None:
    """A short URL is written with its protocol, carrier and port."""
    assert str(parse_url("grpc://[::1]")) == "oip+grpc://[::1]:8001"
    assert str(parse_url("https://host/a")) == "oip+https://host:443/a"
    assert str(parse_url("graphpipe+tls://host:1")) == "graphpipe+tls://host:1"
    assert parse_url("grpc://[::1]").is_loopback


def test_urls_of_unix_sockets_round_trip() -> None:
    """The URL has a path and no host, and the socket is on this machine."""
    url = parse_url("graphpipe+unix:///run/g.sock")
    assert str(url) == "graphpipe+unix:///run/g.sock"
    assert url.authority == "unix:/run/g.sock"
    assert url.is_loopback


@pytest.mark.parametrize(
    ("text", "address", "local"),
    [
        ("127.0.0.1:9000", StreamAddress(Address("127.0.0.1", 9000)), True),
        (":9000", StreamAddress(Address("", 9000)), False),
        ("9000", StreamAddress(Address("127.0.0.1", 9000)), True),
        ("unix:/run/g.sock", StreamAddress(path="/run/g.sock"), True),
    ],
)
def test_reads_stream_addresses(text: str, address: StreamAddress, local: bool) -> None:
    """The address of a byte stream is host and port, or the path of a unix socket."""
    found = parse_stream_address(text)
    assert (address, local) == (found, found.is_loopback)


@pytest.mark.parametrize("text", ["unix:", "unix:g.sock", "unix:/run/", "unix", "/run/g.sock"])
def test_rejects_other_stream_addresses(text: str) -> None:
    """The error has the expected form."""
    with pytest.raises(ValueError, match=r"is not a unix socket|is not an address"):
        parse_stream_address(text)


@pytest.mark.parametrize("text", ["0660", "600", "0000"])
def test_accepts_file_modes(text: str) -> None:
    """Permissions are three octal digits, with or without a leading zero."""
    assert text == check_mode(text)


@pytest.mark.parametrize("text", ["", "0o660", "9", "0888", "1777", "66", "rw-rw----"])
def test_rejects_other_file_modes(text: str) -> None:
    """The error has an example."""
    with pytest.raises(ValueError, match="is not a file mode: expected octal digits, as in 0660"):
        check_mode(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1000, "1000"), (1024, "1KiB"), (96 << 10, "96KiB"), (64 << 20, "64MiB")],
)
def test_writes_sizes(size: int, text: str) -> None:
    """The largest unit that divides the size is used, and parsing returns the same size."""
    assert text == size_text(size)
    assert size == parse_size(text)


@pytest.mark.parametrize(
    ("text", "share"), [("0%", 0.0), ("0.1%", 0.001), ("5 %", 0.05), ("100%", 1.0)]
)
def test_reads_shares(text: str, share: float) -> None:
    """A percentage is read as a number from 0 to 1."""
    assert share == pytest.approx(parse_share(text))


@pytest.mark.parametrize("text", ["", "0.1", "%", "-1%", "101%", "1e1%", ".5%", "nan%"])
def test_rejects_other_shares(text: str) -> None:
    """A number without % is ambiguous."""
    with pytest.raises(ValueError, match="is not a share: expected 0% to 100%"):
        parse_share(text)
