"""The page of the log events, from the calls that write them.

A call whose event is not a constant, or whose fields are made elsewhere and are not in
`MORE_FIELDS`, fails the build: the page would lack them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gateway.migration.cutover.leader import ERROR_EVENTS

ROOT: Final = Path(__file__).parents[1]

_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception"})
_OF_CUTOVERS: Final = ("migration", "text", "step", "weight")
# It writes the events that `CutoverEvent` names elsewhere.
_WRITES_CUTOVER_EVENTS: Final = "gateway/migration/cutover/leader.py"
_CLIENT: Final = (
    "client",
    "client_name",
    "credential",
    "subject",
    "kid",
    "issuer",
    "agent",
    "skipped",
    "skipped_by",
)
_ENDPOINT: Final = ("upstream", "endpoint")
_PROCESS: Final = ("role", "worker", "pid")

MORE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "call": (
        *("code", "model", "ms", "version", "kind", "path", "protocol", "route", "target"),
        *("endpoint", "attempts", "upstream_ms", "queue_ms", "request_bytes", "response_bytes"),
        *("limit", "error", "rule", "request_id", "trace_id", *_CLIENT),
    ),
    "calls still run while a model is loaded": (*_ENDPOINT, "model"),
    "cancelled calls can end the server": _ENDPOINT,
    "certificate expires": ("socket", "file", "expires"),
    "configuration reloaded": ("what changed, by kind",),
    "endpoint not ready": _ENDPOINT,
    "endpoint ready": _ENDPOINT,
    "internal error": ("part",),
    "known weaknesses": _ENDPOINT,
    "large tensors go as bytes": _ENDPOINT,
    "large tensors go in shared memory": _ENDPOINT,
    "lines about calls are missing": ("skipped", "skipped_by"),
    "listener can be reached from other machines without TLS": ("listener", "address"),
    "listener lets other machines use this one's shared memory": ("listener", "address"),
    "model loaded at endpoint": (*_ENDPOINT, "model"),
    "name not resolved": ("upstream", "name"),
    "name resolved again": ("upstream", "name"),
    "platform": ("what the platform says of itself",),
    "process does not reply": _PROCESS,
    "process killed": _PROCESS,
    "process replies again": _PROCESS,
    "rejected": (
        *("code", "model", "limit", "rule", "error", "protocol", "listener", "request_id"),
        *_CLIENT,
    ),
    "retired key": ("line", "column", "path", "message"),
    "rolling load stopped": (*_ENDPOINT, "model"),
    "runtime changes": ("drained", "weights", "those of extensions"),
    "runtime changes hold against the file": ("drained", "weights", "those of extensions"),
    "server identified": _ENDPOINT,
    "shared memory stays small": _ENDPOINT,
    "started": ("the address of each server",),
}
"""Fields that the call of an event does not name."""


def events_page() -> str:
    """Return the page of the log events."""
    levels: dict[str, set[str]] = defaultdict(set)
    fields: dict[str, set[str]] = defaultdict(set)
    files: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for event, level, keys in written(path.read_text("utf-8"), name):
            levels[event].add(level)
            fields[event] |= keys
            files[event].add(name)
    if stale := MORE_FIELDS.keys() - levels.keys():
        raise ValueError(f"nothing writes {', '.join(sorted(stale))}: MORE_FIELDS has them")
    lines = [
        "# Log events",
        "",
        "Each line is a JSON object with `event`, `level` and `timestamp`.",
        "Lines about calls have no empty fields.",
        "",
        "| event | level | fields | written by |",
        "| --- | --- | --- | --- |",
    ]
    for event in sorted(levels):
        shown_fields = ", ".join(key if " " in key else f"`{key}`" for key in sorted(fields[event]))
        names = ", ".join(f"`{name}`" for name in sorted(files[event]))
        shown = " ".join(event.split()).replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {shown} | {', '.join(sorted(levels[event]))} | {shown_fields} | {names} |")
    return "\n".join([*lines, ""])


def written(source: str, name: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yield the event, the level and the fields of each call that writes a line of the log.

    Raises:
        ValueError: The event of a call, or what its fields are, cannot be read here.
    """
    module = ast.parse(source)
    constants = {
        target.id: value
        for node in module.body
        for target, value in _assigned(node)
        if isinstance(target, ast.Name)
    }
    called = set()
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level)) if (
                level in _LEVELS
            ):
                called.add(node.func)
                keys = {each.arg for each in node.keywords if each.arg}
                shown = "error" if level == "exception" else level
                where = f"{name}:{node.lineno}"
                for event in _events(node.args[0], constants, where):
                    if None in {each.arg for each in node.keywords} and event not in MORE_FIELDS:
                        raise ValueError(f"{where}: MORE_FIELDS lacks {event!r}")
                    yield event, shown, keys | {*MORE_FIELDS.get(event, ())}
            case ast.Call(
                func=ast.Name(id="CutoverEvent"), args=[ast.Constant(value=str() as event), *_]
            ):
                shown = "error" if event in ERROR_EVENTS else "info"
                yield event, shown, set(_OF_CUTOVERS)
            case ast.Attribute(value=ast.Name(id="log"), attr=level) if (
                level in _LEVELS and node not in called and name != _WRITES_CUTOVER_EVENTS
            ):
                raise ValueError(f"{name}:{node.lineno}: log.{level} is not called here")
            case _:
                pass


def _events(first: ast.expr, constants: Mapping[str, ast.expr], where: str) -> Iterator[str]:
    """Yield the event that an expression is, or both events that it chooses from."""
    match first:
        case ast.IfExp(body=body, orelse=other):
            yield from _events(body, constants, where)
            yield from _events(other, constants, where)
        case ast.Name(id=name) if name in constants:
            yield from _events(constants[name], {}, where)
        case ast.Constant(value=str(event)):
            yield event
        case _:
            raise ValueError(f"{where}: the event is no constant")


def _assigned(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement of a module assigns to names."""
    match node:
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.Assign(targets=[target], value=value):
            yield target, value
        case _:
            pass
