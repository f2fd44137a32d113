"""Comparison of the names of a request's inputs with those of its model, before elements are read.

Codecs call `compare_inputs` between the names of a message and its elements. It does nothing except
within `with_expected_inputs`, which the frontend uses for messages that are long to read.
"""

from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest
from gateway.ir.tensors.validation import unknown_input

T = TypeVar("T")

Accepts = Callable[[ModelRef, Collection[str]], bool]
"""Returns whether the inputs of these names need no further comparison."""

_ACCEPTS: Final[ContextVar[Accepts | None]] = ContextVar("accepts", default=None)


class UncheckedInputs(Exception):
    """The inputs of a message are unknown, or are not known to be those of its model."""

    def __init__(self, model: ModelRef, names: Collection[str]) -> None:
        super().__init__(model, names)
        self.model = model
        self.names = names


def compare_inputs(model: ModelRef, names: Iterable[str]) -> None:
    """Compare the inputs of a message, whose elements are not read yet.

    Args:
        model: The model of the request.
        names: All its inputs; "" for one without a name.

    Raises:
        UncheckedInputs: Within `with_expected_inputs`, they are not accepted.
    """
    accepts = _ACCEPTS.get()
    if accepts is None:
        return
    found = tuple(names)
    if not accepts(model, found):
        raise UncheckedInputs(model, found)


def is_comparing() -> bool:
    """Return whether `compare_inputs` compares anything."""
    return _ACCEPTS.get() is not None


def with_expected_inputs(accepts: Accepts, function: Callable[..., T], /, *args: Any) -> T:
    """Call *function* for a message, and compare its inputs.

    Raises:
        UncheckedInputs: *accepts* returned false.
    """
    token = _ACCEPTS.set(accepts)
    try:
        return function(*args)
    finally:
        _ACCEPTS.reset(token)


def find_mismatch(
    model: ModelRef, names: Collection[str], declared: Collection[str]
) -> InvalidRequest | None:
    """Return the error of inputs that a model does not have; None for none.

    Args:
        model: The model of the request.
        names: Inputs of the request; "" for one without a name.
        declared: All inputs of the model.
    """
    for name in names:
        if name and name not in declared:
            return unknown_input(model, name, declared)
    if len(names) <= len(declared):
        return None
    text = f"model {str(model)!r} has {len(declared)} inputs, the message has {len(names)}"
    return InvalidRequest(text, model=model)
