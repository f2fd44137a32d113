"""The options that a listener or an upstream may set.

Source: docs/protocols/torchserve.md, "10. Configuration".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.wire.options import Reader, flag, model, one_of, read_values
from gateway.wire.rows.write import NonfiniteStyle, RowStyle

WORDS, REFUSE = "words", "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchServeOptions:
    """The options, typed.

    Attributes:
        default_model: Listener: the model of `/invocations` without a name; None for that of the
            listener.
        nonfinite: Listener: whether NaN and infinities are words, or are refused.
        shared: Listener: the protocol's own paths that clients of another protocol ask for too.
    """

    default_model: ModelRef | None = None
    nonfinite: str = WORDS
    shared: tuple[str, ...] = ()


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_values("torchserve", {**_READERS, "forward": flag}, options)
    return options


def read_options(options: Mapping[str, Any]) -> TorchServeOptions:
    """Return *options*, typed; those of the listener's paths too.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    given = {key: value for key, value in options.items() if key != "forward"}  # a retired key
    return TorchServeOptions(**read_values("torchserve", {**_READERS, "shared": _shared}, given))


def row_style(options: TorchServeOptions) -> RowStyle:
    """Return how a listener writes elements of JSON."""
    is_words = options.nonfinite == WORDS
    nonfinite = NonfiniteStyle.WORDS if is_words else NonfiniteStyle.REFUSE
    return RowStyle(nonfinite=nonfinite, has_b64=True)


def _shared(_key: str, value: Any) -> tuple[str, ...]:
    return tuple(value)


_READERS: Final[Mapping[str, Reader]] = {
    "default_model": model,
    "nonfinite": one_of(WORDS, REFUSE),
}
