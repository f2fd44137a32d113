"""The table of all layers, which `gateway explain --layers` prints."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from gateway.api.layer import Calls, Layer
from gateway.app.chains.rows import End
from gateway.app.layers import LAYERS, layers_of

_TITLES: Final[Mapping[str, str]] = MappingProxyType({"model": "model in process"})
_PASSED: Final[Mapping[Calls, str]] = MappingProxyType(
    {
        Calls.ALL: "",
        Calls.QUESTIONS: " (not for inference)",
        Calls.INFERENCE: " (for inference only)",
    }
)


def describe_layers() -> Iterator[str]:
    """Yield the lines of a table of all chains."""
    rows: dict[str, list[Layer | End]] = {
        chain: [*layers_of(chain), *(row for row in LAYERS[chain] if isinstance(row, End))]
        for chain in LAYERS
    }
    width = max(len(row.name) for each in rows.values() for row in each)
    for chain, each in rows.items():
        yield _TITLES.get(chain, chain)
        for row in each:
            passed = _PASSED[row.calls] if isinstance(row, Layer) else ""
            yield f"  {row.name:{width}}  {row.purpose}{passed}"
