"""Which clients share batches and cached replies of a model."""

from collections.abc import Callable
from typing import Any, Final

from gateway.ir.calls import Call

NONE: Final = "none"
GROUP: Final = "group"
CLIENT: Final = "client"

Apart = Callable[[Call[Any]], str]
"""Returns a text that is equal for the calls that may share."""


def _by_group(call: Call[Any]) -> str:
    return repr(sorted(call.context.client.identity.groups))


def _by_client(call: Call[Any]) -> str:
    return call.context.client.identity.name


def apart_by(kind: str) -> Apart | None:
    """Return what keeps calls apart by "group" or "client"; None for "none"."""
    return {NONE: None, GROUP: _by_group, CLIENT: _by_client}[kind]
