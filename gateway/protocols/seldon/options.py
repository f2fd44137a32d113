"""The options that a listener or an upstream may set.

Source: docs/protocols/seldon.md, "8. Configuration".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import UntypedRules
from gateway.wire.options import Reader, flag, model, one_of, read_values, text
from gateway.wire.rows.write import NonfiniteStyle, RowStyle

WORDS, REFUSE = "words", "refuse"
ANSWER, FORWARD = "answer", "forward"
AUTO, TENSOR, NDARRAY, TFTENSOR, TEXT = "auto", "tensor", "ndarray", "tftensor", "text"
SELDON, MODEL = "Seldon", "Model"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeldonOptions:
    """The options, typed.

    Attributes:
        default_model: Listener: the model of requests that name none; None for that of the
            listener.
        nonfinite: Listener: whether NaN and infinities are words in JSON, or are refused.
        bits: Listener: whether 0 and 1 of a `tensor` are elements of BOOL.
        feedback: Listener: whether the gateway answers feedback, or passes it to the server, which
            must be one of Seldon.
        form: Upstream: how tensors are sent; `auto` for `tensor`, and for `ndarray` where a tensor
            has no numbers or is not exact as doubles.
        service: Upstream: the gRPC service that is called.
        deployment: Upstream: the deployment that gRPC metadata name; "" for none.
        namespace: Upstream: the namespace that gRPC metadata name; "" for none.
    """

    default_model: ModelRef | None = None
    nonfinite: str = WORDS
    bits: bool = False
    feedback: str = ANSWER
    form: str = AUTO
    service: str = SELDON
    deployment: str = ""
    namespace: str = ""

    @property
    def style(self) -> RowStyle:
        """How elements are written."""
        is_words = self.nonfinite == WORDS
        return RowStyle(nonfinite=NonfiniteStyle.WORDS if is_words else NonfiniteStyle.REFUSE)


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_options(options)
    return options


def read_options(options: Mapping[str, Any]) -> SeldonOptions:
    """Return *options*, typed.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return SeldonOptions(**read_values("seldon", _READERS, options))


@dataclass(frozen=True, slots=True)
class ValueRules:
    """What values a message may have.

    Attributes:
        ndarray: In `ndarray`, and in `data` without an array.
        tensor: In `tensor`, whose numbers are doubles.
        floats: In an array of JSON whose integers may have lost digits.
        element: In `strData`, `binData` and `jsonData`.
    """

    ndarray: UntypedRules
    tensor: UntypedRules
    floats: UntypedRules
    element: UntypedRules


def value_rules(options: SeldonOptions, limits: MessageLimits) -> ValueRules:
    """Return what values the messages of a listener or an upstream may have."""
    is_words = options.nonfinite == WORDS
    most = limits.bytes_element_size
    return ValueRules(
        UntypedRules(
            protocol="seldon",
            has_b64=False,
            has_nonfinite=is_words,
            has_whole_floats=True,
            has_empty_tensors=True,
            bytes_element_size=most,
        ),
        UntypedRules(
            protocol="seldon",
            has_b64=False,
            has_nonfinite=is_words,
            has_whole_floats=True,
            has_doubles_only=True,
            has_bits=options.bits,
            has_empty_tensors=True,
            bytes_element_size=most,
        ),
        UntypedRules(protocol="seldon", has_b64=False, has_nonfinite=is_words),
        UntypedRules(protocol="seldon", bytes_element_size=most),
    )


_READERS: Final[Mapping[str, Reader]] = {
    "default_model": model,
    "nonfinite": one_of(WORDS, REFUSE),
    "bits": flag,
    "feedback": one_of(ANSWER, FORWARD),
    "form": one_of(AUTO, TENSOR, NDARRAY, TFTENSOR, TEXT),
    "service": one_of(SELDON, MODEL),
    "deployment": text,
    "namespace": text,
}
