"""Durations, sizes, addresses and URLs, and how they are written in YAML."""

import re
from dataclasses import dataclass

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_SIZE = re.compile(r"([0-9]+)(B|KiB|MiB|GiB|kB|MB|GB)?")
_BYTES = {
    None: 1,
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}

_MODE = re.compile("0?[0-7]{3}")

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._*-]*):([0-9]{1,5})")
_URL = re.compile(
    r"([a-z]+)(?:\+([a-z]+))?://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[^?#\s]*)?"
)

_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")
_UNIX_URL = re.compile(r"([a-z]+)(?:\+(http|grpc|brpc))?\+unix://(/?[^?#\s]*)")

_PORT_MAX = 65_535


def parse_duration(text: str) -> float:
    """Return a duration such as "250ms", "1.5s", "2m" in seconds.

    Raises:
        ValueError: The text is not a number followed by us, ms, s, m or h.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a duration: expected a number and us, ms, s, m or h, as in 250ms"
        )
    return float(found[1]) * _SECONDS[found[2]]


def parse_header_value(text: str) -> str:
    """Return the value of a header, without a byte order mark before it and spaces around it.

    Raises:
        ValueError: It is empty, or has a character that a header does not carry. The text has
            nothing of the value, which may be a secret.
    """
    value = text.removeprefix("\ufeff").strip(" ")
    if not value:
        raise ValueError("the value is empty: expected printable ASCII")
    for place, character in enumerate(value, start=1):
        if not " " <= character <= "~":
            found = "characters that are not ASCII"
            if character.isascii():
                found = f"control characters, such as {_CONTROLS.get(character, 'one')}"
            raise ValueError(
                f"the value has {found} at position {place}: expected printable ASCII, which is "
                "all that a header carries"
            )
    return value


_CONTROLS = {"\n": "a line break", "\r": "a line break", "\t": "a tab"}


def parse_share(text: str) -> float:
    """Return a share such as "0.1%" as a number from 0 to 1.

    Raises:
        ValueError: The text is not a number from 0 to 100 followed by %.
    """
    found = _SHARE.fullmatch(text)
    share = float(found[1]) / 100 if found is not None else -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not a share: expected 0% to 100%, as in 0.1%")
    return share


def parse_size(text: str) -> int:
    """Return a size such as "16MiB", "64kB", "1024" in bytes.

    Raises:
        ValueError: The text is not a whole number followed by B, KiB, MiB, GiB, kB, MB or GB.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a size: expected a whole number and B, KiB, MiB or GiB, as in 16MiB"
        )
    return int(found[1]) * _BYTES[found[2]]


def size_text(size: int) -> str:
    """Return a size in bytes as text for `parse_size`, with the largest unit that divides it."""
    units = ((unit, _BYTES[unit]) for unit in ("GiB", "MiB", "KiB"))
    return next(
        (f"{size // each}{unit}" for unit, each in units if size and not size % each), str(size)
    )


def check_mode(text: str) -> str:
    """Return the permissions of a file, such as "0660", unchanged.

    Raises:
        ValueError: The text is not three octal digits, or four that begin with 0.
    """
    if _MODE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a file mode: expected octal digits, as in 0660")
    return text


AUTO = 0
"""Number of workers for "auto", which means one for each core."""

_WORKERS_MAX = 256


def parse_workers(text: str) -> int:
    """Return a number of worker processes, or `AUTO` for "auto".

    Raises:
        ValueError: The text is neither "auto" nor a number from 1 to 256.
    """
    if text == "auto":
        return AUTO
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < number <= _WORKERS_MAX:
        raise ValueError(
            f"{text!r} is not a number of workers: expected 1 to {_WORKERS_MAX}, or auto"
        )
    return number


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port to listen on: host "" means every address, port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect to it."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")


def parse_address(text: str) -> Address:
    """Return "HOST:PORT", ":PORT" or "PORT" as an address; a port alone means loopback.

    Raises:
        ValueError: The text is none of these, or the port is above 65535.
    """
    if text.isascii() and text.isdigit():
        text = f"127.0.0.1:{text}"
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > _PORT_MAX:
        raise ValueError(f"{text!r} is not an address: expected HOST:PORT, as in 127.0.0.1:8000")
    host = found[1].strip("[]")
    return Address("" if host == "*" else host, int(found[2]))


UNIX = "unix"
"""The carrier of unix sockets, and the prefix of their addresses."""


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """Address of a byte stream to listen on: host and port, or the path of a unix socket."""

    tcp: Address | None = None
    path: str = ""

    def __str__(self) -> str:
        return f"{UNIX}:{self.path}" if self.tcp is None else str(self.tcp)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect to it."""
        return self.tcp is None or self.tcp.is_loopback


def parse_stream_address(text: str) -> StreamAddress:
    """Return "unix:/path", or the text of an `Address`, as an address.

    Raises:
        ValueError: The text is none of these, or the path is not absolute.
    """
    prefix, colon, path = text.partition(":")
    if prefix != UNIX or not colon:
        return StreamAddress(tcp=parse_address(text))
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError(
            f"{text!r} is not a unix socket: expected unix:/PATH, as in unix:/run/g.sock"
        )
    return StreamAddress(path=path)


def is_url(text: str) -> bool:
    """Return whether *text* is fetched over HTTP, where a key may also name a file."""
    return text.startswith(("https://", "http://"))


@dataclass(frozen=True, slots=True)
class Url:
    """Address and protocol of an upstream: `protocol+carrier://host:port/path`.

    A unix socket has only a path: `protocol+carrier+unix:///path`, of byte streams
    `protocol+unix:///path`.

    Attributes:
        socket: Path of the unix socket, where the URL names one; `host` is "" and `port` 0 then.
        tls: Whether the scheme names TLS, as in `oip+https`; the carrier is then `http`.
        is_root: The text had the path "/", which is no path for most protocols.
    """

    protocol: str
    carrier: str
    host: str
    port: int
    path: str = ""
    tls: bool = False
    is_root: bool = False
    socket: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.socket or self.authority + self.path}"

    @property
    def scheme(self) -> str:
        """Protocol and carrier, as in `oip+https`."""
        carrier = _TLS_NAMES[self.carrier] if self.tls else self.carrier
        unix = f"+{UNIX}" if self.socket and carrier != UNIX else ""
        return f"{self.protocol}+{carrier}{unix}"

    @property
    def form(self) -> str:
        """Protocol and carrier without TLS and sockets, as in `oip+http`."""
        return f"{self.protocol}+{self.carrier}"

    @property
    def authority(self) -> str:
        """Address without the protocol: host:port, or unix:/path. An IPv6 host is in brackets."""
        if self.socket:
            return str(StreamAddress(path=self.socket))
        return str(Address(self.host, self.port))

    @property
    def is_loopback(self) -> bool:
        """Whether the upstream runs on this machine."""
        return bool(self.socket) or Address(self.host, self.port).is_loopback


_DEFAULT_PROTOCOL = "oip"
_DEFAULT_PORTS = {"http": 8000, "grpc": 8001}
_TLS_PORT = 443
# The carriers with TLS, by those without.
_TLS_NAMES = {"http": "https", "grpc": "grpcs", "tcp": "tls", "brpc": "brpcs"}
_WITHOUT_TLS = {name: carrier for carrier, name in _TLS_NAMES.items()}


def parse_url(text: str) -> Url:
    """Return an upstream's URL; `http`, `https`, `grpc` and `grpcs` alone mean Open Inference.

    The scheme may have capitals.

    Raises:
        ValueError: The text is not such a URL, or has no port although its carrier has no default.
    """
    scheme, separator, rest = text.partition("://")
    lowered = f"{scheme.lower()}{separator}{rest}"
    unix = _UNIX_URL.fullmatch(lowered)
    if unix is not None:
        protocol, carrier = unix[1], unix[2] or UNIX
        if not unix[2] and protocol in _DEFAULT_PORTS:
            protocol, carrier = _DEFAULT_PROTOCOL, protocol
        return Url(protocol, carrier, "", 0, socket=parse_stream_address(f"{UNIX}:{unix[3]}").path)
    found = _URL.fullmatch(lowered)
    if found is None:
        raise ValueError(
            f"{text!r} is not an upstream URL: expected PROTOCOL+CARRIER://HOST:PORT, "
            "as in oip+grpc://127.0.0.1:8001, or PROTOCOL+CARRIER+unix:///PATH"
        )
    protocol, name, host, port, path = found.groups()
    if name is None:
        if _WITHOUT_TLS.get(protocol, protocol) not in _DEFAULT_PORTS:
            example = f"{_DEFAULT_PROTOCOL}+http://"
            raise ValueError(
                f"{text!r} names no carrier: expected PROTOCOL+CARRIER://, as in {example}"
            )
        protocol, name = _DEFAULT_PROTOCOL, protocol
    elif _WITHOUT_TLS.get(protocol, protocol) in _TLS_NAMES:
        raise ValueError(
            f"{text!r} begins with a carrier: expected PROTOCOL+CARRIER://, as in "
            f"{_DEFAULT_PROTOCOL}+{protocol}://"
        )
    carrier = _WITHOUT_TLS.get(name, name)
    has_tls = carrier != name
    default = _DEFAULT_PORTS.get(carrier)
    if has_tls and default is not None:
        default = _TLS_PORT
    number = int(port) if port else default
    if number is None or not 0 < number <= _PORT_MAX:
        raise ValueError(f"{text!r} has no valid port: expected 1 to {_PORT_MAX}")
    plain = (path or "").rstrip("/")
    return Url(protocol, carrier, host.strip("[]"), number, plain, has_tls, path == "/")
