"""Keys that the next version of the file format does not have.

In this version they work, except those of `adaptive_concurrency`, whose algorithm is gone. `gateway
validate` and the log name what stands for each. The schema and the reference list none of them.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from gateway.config.yaml_tree import Finding, KeyPath

_FIXED: Final = "the next version always has the default, {}"
_ADAPTIVE: Final = "it has no effect; expected 'adaptive_concurrency: on_overload'"
_RATE: Final = "expected 'min_rate_bytes_s', which holds for requests and responses"
_IDLE: Final = "expected 'idle_timeout', which holds for requests and responses"
_BACKOFF: Final = "expected a duration, as in 'backoff: 25ms'; a pause is at most ten times that"
_RETRY: Final = ("policies.retry", "routes[].retry")


def _table() -> Iterator[tuple[str, str]]:
    for key in (
        "algorithm",
        "min",
        "max",
        "latency_percentile",
        "sample",
        "min_rtt_interval",
        "jitter",
    ):
        yield f"upstreams.NAME.adaptive_concurrency.{key}", _ADAPTIVE
    for side in ("body", "write"):
        yield f"listeners[].limits.{side}_min_rate_bytes_s", _RATE
        yield f"listeners[].limits.{side}_min_rate_grace", _FIXED.format("10s")
        yield f"listeners[].limits.{side}_idle_timeout", _IDLE
    limits = {
        "decompressed_ratio_floor_bytes": "1MiB",
        "header_line_bytes": "8190",
        "header_count": "100",
    }
    for key, default in limits.items():
        yield f"listeners[].limits.{key}", _FIXED.format(default)
    for side in ("listeners[]", "upstreams.NAME"):
        yield f"{side}.messages.json_keys", _FIXED.format("10000")
        yield f"{side}.messages.model_name_bytes", _FIXED.format("255")
    yield "listeners[].limits.tls_handshake", "expected 'header_timeout', which holds for it, too"
    detection = {
        "max_ejection_time": "60s",
        "max_ejection_percent": "50",
        "min_requests": "20",
        "interval": "10s",
    }
    place = "upstreams.NAME.outlier_detection"
    yield f"{place}.consecutive_timeouts", "expected 'consecutive_failures', which holds for both"
    for key, default in detection.items():
        yield f"{place}.{key}", _FIXED.format(default)
    for retry in _RETRY:
        yield f"{retry}.elsewhere", _FIXED.format("true")
        yield f"{retry}.min_retries", _FIXED.format("3")
        yield f"{retry}.backoff.base", _BACKOFF
        yield f"{retry}.backoff.max", _BACKOFF
    upstream = {"resolve_cap": "30s", "pending_by": "route", "connection_age": "5m"}
    for key, default in upstream.items():
        yield f"upstreams.NAME.limits.{key}", _FIXED.format(default)
    forward = "it has no effect: messages go as they are to a server of the client's protocol"
    yield "listeners[].options.NAME.forward", forward
    yield "lifecycle.reload.signal", _FIXED.format("true")
    yield "lifecycle.reload.debounce", _FIXED.format("500ms")
    for capture in ("capture", "migrations.NAME.capture"):
        yield f"{capture}.min_free", _FIXED.format("10")
        yield f"{capture}.segment_bytes", _FIXED.format("256MiB")
    header = "a client is its identity, or else its address"
    yield "policies.sequence_client_header", header
    share = "expected no such key; the next version allows as many as 'rate' gives in a second"
    yield "routes[].share.burst", share
    yield "routes[].queue_priority_by", "expected 'queue_priority: header:NAME'"
    yield "admin.remote_changes", "expected 'admin.token', which other machines send"


RETIRED: Final[Mapping[str, str]] = MappingProxyType(dict(_table()))
"""What to do about each retired key, by its path: `[]` is an entry of a list, `NAME` any name."""


def retired_keys(file: Any) -> Iterator[Finding]:
    """Yield the retired keys that a file has, each with what stands for it.

    Args:
        file: The plain values of the file.
    """
    for pattern, text in RETIRED.items():
        parts = pattern.replace("[]", ".[]").split(".")
        for path in _found(file, parts, ()):
            yield path, f"this key is retired, and the next version refuses it: {text}"


def _found(value: Any, parts: list[str], path: KeyPath) -> Iterator[KeyPath]:
    if not parts:
        yield path
        return
    part, rest = parts[0], parts[1:]
    if part == "[]":
        for index, entry in enumerate(value if isinstance(value, list) else ()):
            yield from _found(entry, rest, (*path, index))
    elif isinstance(value, dict):
        for key in value if part == "NAME" else (part,):
            if key in value:
                yield from _found(value[key], rest, (*path, key))


def without_retired(schema: dict[str, Any]) -> None:
    """Remove the retired keys from the JSON Schema of the file."""
    for pattern in RETIRED:
        *parts, key = pattern.replace("[]", ".[]").split(".")
        for section in _sections(schema, schema, parts):
            section.get("properties", {}).pop(key, None)


def _sections(
    schema: dict[str, Any], found: dict[str, Any], parts: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the objects that *parts* lead to from a part of the schema."""
    if "$ref" in found:
        name = found["$ref"].rsplit("/", 1)[1]
        yield from _sections(schema, schema["$defs"][name], parts)
        return
    if "anyOf" in found:
        for each in found["anyOf"]:
            yield from _sections(schema, each, parts)
        return
    if not parts:
        yield found
        return
    below = {
        "[]": [found.get("items")],
        "NAME": [*found.get("patternProperties", {}).values(), found.get("additionalProperties")],
    }.get(parts[0], [found.get("properties", {}).get(parts[0])])
    for each in below:
        if isinstance(each, dict):
            yield from _sections(schema, each, parts[1:])
