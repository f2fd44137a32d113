"""The options of GraphPipe that a listener or an upstream may set."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.wire.options import (
    Reader,
    flag,
    list_of,
    matching,
    model,
    number,
    one_of,
    read_values,
    text,
    wrong,
)

BODY, STATUS = "body", "status"
METADATA, CONTROL = "metadata", "control"
_MAX_DROPPED: Final = 16
_PATH: Final = re.compile(r"(/[!\"$->@-~]*)?")  # printable ASCII without "?", "#" and space


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPipeOptions:
    """The options, typed.

    Attributes:
        default_model: Listener: the model of a URL without one, and of a socket; "name" or
            "name/version".
        errors: Listener: how errors of inferences are sent. `body` is a message with HTTP status
            200, as the specification has it; `status` is an HTTP status and text, as the Go server
            sends it.
        lenient_names: Listener: accept fewer or more input names than tensors, as the Go server.
        path: Upstream: where every message is posted; "" for /graphpipe/<model>[/<version>].
        config: Upstream: sent as config in every request; None for the caller's own.
        inputs: Upstream: its inputs, in its order; empty when not configured.
        outputs: Upstream: its outputs, in its order, all of which are requested; empty likewise.
        drop_outputs: Upstream: how many tensors before the outputs to drop (ForestFlow sends one).
        health: Upstream: `metadata` requests metadata, `control` the Go server's own paths.
    """

    default_model: ModelRef | None = None
    errors: str = BODY
    lenient_names: bool = False
    path: str = ""
    config: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    drop_outputs: int = 0
    health: str = METADATA

    @property
    def changes_messages(self) -> bool:
        """Whether an option says how messages are read or written."""
        return (
            self.errors != BODY
            or self.lenient_names
            or self.config is not None
            or bool(self.inputs or self.outputs or self.drop_outputs)
        )


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_options(options)
    return options


def read_options(options: Mapping[str, Any]) -> GraphPipeOptions:
    """Return *options*, typed.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return GraphPipeOptions(**read_values("graphpipe", _READERS, options))


def _names(key: str, value: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = list_of(text)(key, value)
    if "" in names or len(set(names)) < len(names):
        raise wrong(key, value, "a list of names, each of them once")
    return names


_READERS: Final[Mapping[str, Reader]] = {
    "default_model": model,
    "errors": one_of(BODY, STATUS),
    "lenient_names": flag,
    "path": matching(_PATH, "a path of printable ASCII that begins with '/'"),
    "config": text,
    "inputs": _names,
    "outputs": _names,
    "drop_outputs": number(0, _MAX_DROPPED),
    "health": one_of(METADATA, CONTROL),
}
