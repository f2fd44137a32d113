"""Header fields and gRPC metadata by their names: those of some names, and all others."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from gateway.accelerator import accelerated

Pair = TypeVar("Pair", bound=tuple[str, Any])


@accelerated
def texts_among(pairs: Sequence[tuple[str, Any]], names: AbstractSet[str]) -> list[tuple[str, str]]:
    """Return the fields with a text whose names are in *names*, in their order.

    Args:
        pairs: The fields; their names may have capitals.
        names: In lower case. The result has them in lower case too.
    """
    return [
        (key, value)
        for name, value in pairs
        if (key := name.lower()) in names and isinstance(value, str)
    ]


@accelerated
def pairs_without(pairs: tuple[Pair, ...], names: AbstractSet[str]) -> tuple[Pair, ...]:
    """Return the fields whose names are not in *names*; the same tuple if that is all of them.

    Args:
        pairs: The fields; their names may have capitals.
        names: In lower case.
    """
    kept = tuple([pair for pair in pairs if pair[0].lower() not in names])
    return pairs if len(kept) == len(pairs) else kept
