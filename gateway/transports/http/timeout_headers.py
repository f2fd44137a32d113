"""Deadlines in HTTP header fields: `grpc-timeout` and `X-Request-Timeout`, both relative.

`grpc-timeout` has gRPC's own form, such as "250m". `X-Request-Timeout` is seconds, as in "1.5", or
a number with a unit: "250ms", "2s", "800us". A malformed field is ignored, as if it were absent:
the route's timeout holds then.
"""

import re
from functools import lru_cache

_GRPC = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PLAIN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(us|ms|s)?", re.ASCII)
_PLAIN_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_DIGITS_MAX = 99_999_999
_COARSE_FROM_S = 1.0


def grpc_timeout(value: str) -> float | None:
    """Return the seconds a `grpc-timeout` field says; None when it is malformed.

    Source: gRPC over HTTP2, "Timeout".
    """
    match = _GRPC.fullmatch(value.strip())
    return None if match is None else int(match[1]) * _GRPC_UNITS[match[2]]


def request_timeout(value: str) -> float | None:
    """Return the seconds an `X-Request-Timeout` field says; None when it is malformed."""
    match = _PLAIN.fullmatch(value.strip())
    return None if match is None else float(match[1]) * _PLAIN_UNITS[match[2] or ""]


def timeout_of(grpc: str | None, plain: str | None) -> float | None:
    """Return the shorter of what the two fields say, in seconds; None for neither."""
    times = [
        seconds
        for seconds in (
            None if grpc is None else grpc_timeout(grpc),
            None if plain is None else request_timeout(plain),
        )
        if seconds is not None
    ]
    return min(times) if times else None


def format_grpc_timeout(seconds: float) -> str:
    """Write *seconds*, at least one microsecond, as a `grpc-timeout` field, rounded down."""
    micros = max(1, int(seconds * 1e6))
    if micros < 10_000:  # noqa: PLR2004  # below 10 ms a whole millisecond is too coarse
        return f"{micros}u"
    millis = micros // 1000
    return f"{millis}m" if millis <= _DIGITS_MAX else f"{min(millis // 1000, _DIGITS_MAX)}S"


def coarse_timeout(seconds: float) -> str:
    """Write *seconds* as `format_grpc_timeout`, from a second on in hundredths.

    That is as good as exact, and equal fields cost both sides less.
    """
    if seconds < _COARSE_FROM_S:
        return format_grpc_timeout(seconds)
    return _hundredths(int(seconds * 100))


@lru_cache(1024)
def _hundredths(count: int) -> str:
    return format_grpc_timeout(count / 100)
