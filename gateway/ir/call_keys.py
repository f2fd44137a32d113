"""Keys of calls: the text that calls are grouped by, such as their model or their client."""

from collections.abc import Callable
from typing import Any

from gateway.ir.calls import Call

Key = Callable[[Call[Any]], str | None]
"""Returns the key of a call; None if the call has none."""


def key_of(source: str) -> Key:
    """Return the key function of a source: `model`, `address`, `client`, or `header:NAME`."""
    if source == "model":
        return lambda call: None if call.model is None else call.model.name
    if source == "address":
        return lambda call: call.context.client.address or None
    if source == "client":
        return lambda call: call.context.client.identity.name
    name = source.removeprefix("header:").lower()
    return lambda call: next(
        (value for key, value in call.context.metadata if key == name and value), None
    )
