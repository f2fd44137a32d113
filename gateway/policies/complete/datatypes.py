"""Conversion of substitute datatypes to the declared ones, such as UINT8 to BOOL, FP32 to BF16.

A protocol without these datatypes sends others, and only the model's metadata declare the original.
`Complete` gets the metadata. Values are never rounded and never wrapped.

Source: docs/protocols/graphpipe.md, "9.2 BOOL and BF16"; docs/protocols/grps.md, "3. Datatypes".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import ArrayData, RawData, TensorData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_numpy, as_raw

# Substitutes by declared datatype. Some clients send booleans as INT8.
_SUBSTITUTES: Final[Mapping[Datatype, frozenset[Datatype]]] = {
    Datatype.BOOL: frozenset({Datatype.UINT8, Datatype.INT8}),
    Datatype.BF16: frozenset({Datatype.FP32}),
}
_INTEGERS: Final = frozenset(
    {Datatype.UINT8, Datatype.INT8, Datatype.INT16, Datatype.INT32, Datatype.INT64}
)
_WIDENED: Final[Mapping[Datatype, frozenset[Datatype]]] = {
    Datatype.BOOL: frozenset({Datatype.UINT8}),
    Datatype.BF16: frozenset({Datatype.FP32}),
    Datatype.UINT16: _INTEGERS,
    Datatype.UINT32: _INTEGERS,
    Datatype.UINT64: _INTEGERS,
}
_ANY: Final = {
    Need.SUBSTITUTES: frozenset().union(*_SUBSTITUTES.values()),
    Need.WIDENED: frozenset().union(*_WIDENED.values()),
}


def substitute_kind(needs: frozenset[Need]) -> Need | None:
    """Return the kind of substitutes that a codec with *needs* sends; None for none."""
    if Need.WIDENED in needs:
        return Need.WIDENED
    return Need.SUBSTITUTES if Need.SUBSTITUTES in needs else None


def may_be_substitute(tensors: Sequence[Tensor], need: Need = Need.SUBSTITUTES) -> bool:
    """Return whether some tensor may have a substitute datatype."""
    return any(tensor.datatype in _ANY[need] for tensor in tensors)


@dataclass(frozen=True, slots=True)
class DatatypeRestorer:
    """Restores the declared datatypes of tensors.

    Attributes:
        kind: "input" or "output", for errors.
        model: For errors.
        declared: The model's declarations; tensors without a name are matched by position.
        failure: Raised for a value that the declared datatype cannot represent.
        is_widened: Whether the substitutes are of the kind `Need.WIDENED`.
    """

    kind: str
    model: ModelRef
    declared: Sequence[TensorMetadata]
    failure: type[GatewayError]
    is_widened: bool = False

    def replace(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return *tensors* with the datatypes that the model declares.

        Without substitutes it returns the same tuple. A byte other than 0 is true unless widened;
        a buffer of 0 and 1 is not copied. FP32 becomes BF16 if no value loses bits; this and the
        conversion of integers copy.

        Raises:
            GatewayError: Of class `failure`: the declared datatype cannot represent a value.
        """
        table = _WIDENED if self.is_widened else _SUBSTITUTES
        by_name = {declared.name: declared for declared in self.declared}
        replaced: list[Tensor] = []
        is_changed = False
        for position, tensor in enumerate(tensors):
            if tensor.name:
                declared = by_name.get(tensor.name)
            else:
                declared = self.declared[position] if position < len(self.declared) else None
            target = None if declared is None else declared.datatype
            if declared is None or target is None or tensor.datatype not in table.get(target, ()):
                replaced.append(tensor)
                continue
            data = self._convert(tensor, target, declared.name)
            replaced.append(Tensor(tensor.name, target, tensor.shape, data, tensor.parameters))
            is_changed = True
        return tuple(replaced) if is_changed else tensors

    def _convert(self, tensor: Tensor, target: Datatype, name: str) -> TensorData:
        if target is Datatype.BF16:
            return RawData(self._to_bf16(tensor, name))
        if target is Datatype.BOOL:
            if self.is_widened:
                self._check_range(tensor, target, name, 1)
            return RawData(_to_bool(tensor))
        self._check_range(tensor, target, name, int(np.iinfo(target.numpy_dtype).max))
        return ArrayData(as_numpy(tensor).astype(target.numpy_dtype))

    def _check_range(self, tensor: Tensor, target: Datatype, name: str, maximum: int) -> None:
        values = as_numpy(tensor).reshape(-1)
        if not values.size or (int(values.min()) >= 0 and int(values.max()) <= maximum):
            return
        index = next(at for at, value in enumerate(values.tolist()) if not 0 <= value <= maximum)
        found = "" if tensor.datatype is None else tensor.datatype.value
        raise self.failure(
            f"{self.kind} {name!r} of model {str(self.model)!r} is {target.value}, sent as {found}:"
            f" element {index} is {int(values[index])}; expected a value from 0 to {maximum}",
            model=self.model,
        )

    def _to_bf16(self, tensor: Tensor, name: str) -> memoryview:
        """Return FP32 as BF16: the upper half of each value, if the lower half is zero."""
        halves = np.frombuffer(as_raw(tensor), "<u2").reshape(-1, 2)
        inexact = np.flatnonzero(halves[:, 0])
        if inexact.size:
            index = int(inexact[0])
            value = np.frombuffer(as_raw(tensor), "<f4")[index]
            raise self.failure(
                f"{self.kind} {name!r} of model {str(self.model)!r} is BF16, sent as FP32: element "
                f"{index} is {float(value)!r}, which BF16 cannot represent exactly; round the "
                "values to BF16 before sending them",
                model=self.model,
            )
        return memoryview(halves[:, 1].tobytes())


def _to_bool(tensor: Tensor) -> memoryview:
    raw = as_raw(tensor)
    values = np.frombuffer(raw, np.uint8)
    if not values.size or values.max() <= 1:
        return raw
    return memoryview((values != 0).tobytes())


def in_order(tensors: tuple[Tensor, ...], names: Sequence[str]) -> tuple[Tensor, ...]:
    """Return *tensors* in the order of *names*, others last; the same tuple if already sorted."""
    positions = {name: position for position, name in enumerate(names)}
    found = [positions.get(tensor.name, len(positions)) for tensor in tensors]
    if found == sorted(found):
        return tensors
    return tuple([tensors[index] for index in sorted(range(len(found)), key=found.__getitem__)])
