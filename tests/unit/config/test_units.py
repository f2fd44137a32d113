"""Durations, sizes, addresses and URLs."""

from __future__ import annotations

import pytest

from gateway.config.units import (
    AUTO,
    Address,
    StreamAddress,
    Url,
    check_mode,
    parse_address,
    parse_duration,
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
    """A number and a unit are seconds."""
    assert seconds == pytest.approx(parse_duration(text))


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1S", "1e3s", "\u0665s", "1s\n"])
def test_refuses_other_durations(text: str) -> None:
    """Anything else is refused with a word on how to write it."""
    with pytest.raises(ValueError, match="is not a duration: write a number and us, ms, s, m or h"):
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
    """A whole number, with or without a unit, is bytes."""
    assert size == parse_size(text)


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("256", 256), ("auto", AUTO)])
def test_reads_numbers_of_workers(text: str, number: int) -> None:
    """A number, or auto for as many as there are cores."""
    assert number == parse_workers(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "257", "2.0", "all", "\uff12"])
def test_refuses_other_numbers_of_workers(text: str) -> None:
    """None, too many and what is no number are refused with a word on what may be written."""
    with pytest.raises(ValueError, match="is no number of workers: write 1 to 256, or auto"):
        parse_workers(text)


@pytest.mark.parametrize("text", ["", "MiB", "1.5MiB", "-1", "1 MiB", "1mib", "1_000", "\uff11"])
def test_refuses_other_sizes(text: str) -> None:
    """Anything else is refused with a word on how to write it."""
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
    """A port alone means this machine only; an empty host or a star means every address."""
    assert address == parse_address(text)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:65536", "::1:80", "a b:1", "h:-1"])
def test_refuses_other_addresses(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(ValueError, match="is not an address: write HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.1.2.3:1"])
def test_knows_loopback(text: str) -> None:
    """Addresses of this machine alone are known as such."""
    assert parse_address(text).is_loopback


@pytest.mark.parametrize("text", ["0.0.0.0:1", ":1", "[::]:1", "example.com:1"])
def test_knows_what_is_beyond_loopback(text: str) -> None:
    """Addresses that others can reach are not taken for loopback."""
    assert not parse_address(text).is_loopback


def test_address_is_written_as_it_is_read() -> None:
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
        ("graphpipe+tcp://[::1]:9000", Url("graphpipe", "tcp", "::1", 9000)),
        ("graphpipe+unix:///run/g.sock", Url("graphpipe", "unix", "", 0, "/run/g.sock")),
    ],
)
def test_reads_urls(text: str, url: Url) -> None:
    """Protocol and carrier are named; http and grpc alone mean Open Inference."""
    assert url == parse_url(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not an upstream URL"),
        ("127.0.0.1:8001", "is not an upstream URL"),
        ("oip+http://user:secret@host", "is not an upstream URL"),
        ("oip+http://host/?q", "is not an upstream URL"),
        ("oip://host:80", "does not say what the upstream speaks"),
        ("grps+brpc://host", "needs a port"),
        ("graphpipe+tcp://host", "needs a port"),
        ("graphpipe+unix://", "is not a unix socket: write unix:/PATH"),
        ("graphpipe+unix://run/g.sock", "is not a unix socket: write unix:/PATH"),
        ("unix:///run/g.sock", "is not an upstream URL"),
        ("oip+http://host:0", "needs a port from 1"),
        ("oip+http://host:65536", "needs a port from 1"),
    ],
)
def test_refuses_other_urls(text: str, said: str) -> None:
    """What is not a URL of an upstream is refused with the reason."""
    with pytest.raises(ValueError, match=said):
        parse_url(text)


def test_url_is_written_in_full() -> None:
    """A short URL is written with its protocol, carrier and port."""
    assert str(parse_url("grpc://[::1]")) == "oip+grpc://[::1]:8001"
    assert parse_url("grpc://[::1]").is_loopback


def test_a_unix_sockets_url_is_written_as_it_is_read() -> None:
    """It has a path and no host, and is on this machine."""
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
    """A byte stream has host and port, or the path of a unix socket."""
    found = parse_stream_address(text)
    assert (address, local) == (found, found.is_loopback)


@pytest.mark.parametrize("text", ["unix:", "unix:g.sock", "unix:/run/", "unix", "/run/g.sock"])
def test_refuses_other_stream_addresses(text: str) -> None:
    """What is neither is refused with an example."""
    with pytest.raises(ValueError, match=r"is not a unix socket|is not an address"):
        parse_stream_address(text)


@pytest.mark.parametrize("text", ["0660", "600", "0000"])
def test_takes_file_modes(text: str) -> None:
    """Permissions stand in octal."""
    assert text == check_mode(text)


@pytest.mark.parametrize("text", ["", "0o660", "9", "0888", "1777", "66", "rw-rw----"])
def test_refuses_other_file_modes(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(ValueError, match="is not a file mode: write it in octal, as in 0660"):
        check_mode(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1000, "1000"), (1024, "1KiB"), (96 << 10, "96KiB"), (64 << 20, "64MiB")],
)
def test_writes_sizes(size: int, text: str) -> None:
    """A size is written with the largest unit that divides it, and is read as it is written."""
    assert text == size_text(size)
    assert size == parse_size(text)
