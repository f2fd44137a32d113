"""Stand-ins taken back: UINT8 that the model declares BOOL, FP32 that it declares BF16. Pure.

A protocol without these datatypes writes others for them, and only the model's metadata tells
which was meant. `Complete` asks for the metadata; here it is applied. Values are never rounded
and never wrapped.

Source: docs/protocols/graphpipe.md, "9.2 BOOL and BF16"; docs/protocols/grps.md, "3. Datatypes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.ir.context import ModelRef, Need
from gateway.ir.data import ArrayData, RawData, TensorData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensor import Tensor, as_numpy, as_raw

# What was meant, and what comes for it. INT8 is how some clients send truth values.
_STAND_INS: Final[Mapping[Datatype, frozenset[Datatype]]] = {
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
    Need.SUBSTITUTES: frozenset().union(*_STAND_INS.values()),
    Need.WIDENED: frozenset().union(*_WIDENED.values()),
}


def substitute_kind(needs: frozenset[Need]) -> Need | None:
    """Return which kind of stand-ins a codec with *needs* writes, None for none."""
    if Need.WIDENED in needs:
        return Need.WIDENED
    return Need.SUBSTITUTES if Need.SUBSTITUTES in needs else None


def may_be_substitute(tensors: Sequence[Tensor], need: Need = Need.SUBSTITUTES) -> bool:
    """Return whether some tensor could mean another datatype than it has."""
    return any(tensor.datatype in _ANY[need] for tensor in tensors)


@dataclass(frozen=True, slots=True)
class DatatypeRestorer:
    """The metadata that says what was meant.

    Attributes:
        kind: "input" or "output", for errors.
        model: For errors.
        declared: As the model declares them; tensors without a name go by place.
        failure: Raised for a value that the declared datatype cannot hold.
        widened: They are of the kind `Need.WIDENED`.
    """

    kind: str
    model: ModelRef
    declared: Sequence[TensorMetadata]
    failure: type[GatewayError]
    widened: bool = False

    def replace(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return *tensors* in the datatypes that the model declares; itself without stand-ins.

        Any byte but 0 is true, where they are not widened; bytes of 0 and 1 are not copied. FP32
        becomes BF16 when every value keeps all its bits, and copies, as do integers.

        Raises:
            GatewayError: Of class `failure`: the declared datatype cannot hold a value exactly.
        """
        table = _WIDENED if self.widened else _STAND_INS
        known = {declared.name: declared for declared in self.declared}
        replaced: list[Tensor] = []
        changed = False
        for place, tensor in enumerate(tensors):
            if tensor.name:
                declared = known.get(tensor.name)
            else:
                declared = self.declared[place] if place < len(self.declared) else None
            meant = None if declared is None else declared.datatype
            if declared is None or meant is None or tensor.datatype not in table.get(meant, ()):
                replaced.append(tensor)
                continue
            data = self._data(tensor, meant, declared.name)
            replaced.append(Tensor(tensor.name, meant, tensor.shape, data, tensor.parameters))
            changed = True
        return tuple(replaced) if changed else tensors

    def _data(self, tensor: Tensor, meant: Datatype, name: str) -> TensorData:
        if meant is Datatype.BF16:
            return RawData(self._halved(tensor, name))
        if meant is Datatype.BOOL:
            if self.widened:
                self._check_range(tensor, meant, name, 1)
            return RawData(_truths(tensor))
        self._check_range(tensor, meant, name, int(np.iinfo(meant.numpy_dtype).max))
        return ArrayData(as_numpy(tensor).astype(meant.numpy_dtype))

    def _check_range(self, tensor: Tensor, meant: Datatype, name: str, most: int) -> None:
        values = as_numpy(tensor).reshape(-1)
        if not values.size or (int(values.min()) >= 0 and int(values.max()) <= most):
            return
        index = next(at for at, value in enumerate(values.tolist()) if not 0 <= value <= most)
        found = "" if tensor.datatype is None else tensor.datatype.value
        raise self.failure(
            f"{self.kind} {name!r} of model {str(self.model)!r} is {meant.value} and comes as "
            f"{found}: element {index} is {int(values[index])}, needed is a value from 0 to {most}",
            model=self.model,
        )

    def _halved(self, tensor: Tensor, name: str) -> memoryview:
        """Return FP32 as BF16: the upper half of each value, where the lower one is zero."""
        halves = np.frombuffer(as_raw(tensor), "<u2").reshape(-1, 2)
        lost = np.flatnonzero(halves[:, 0])
        if lost.size:
            index = int(lost[0])
            value = np.frombuffer(as_raw(tensor), "<f4")[index]
            raise self.failure(
                f"{self.kind} {name!r} of model {str(self.model)!r} is BF16 and "
                f"comes as FP32: element {index} is {float(value)!r}, which BF16 cannot hold "
                "exactly; round the values to BF16 before they are sent",
                model=self.model,
            )
        return memoryview(halves[:, 1].tobytes())


def _truths(tensor: Tensor) -> memoryview:
    raw = as_raw(tensor)
    values = np.frombuffer(raw, np.uint8)
    if not values.size or values.max() <= 1:
        return raw
    return memoryview((values != 0).tobytes())


def in_order(tensors: tuple[Tensor, ...], names: Sequence[str]) -> tuple[Tensor, ...]:
    """Return *tensors* in the order of *names*, the others after them; itself when they are."""
    places = {name: place for place, name in enumerate(names)}
    found = [places.get(tensor.name, len(places)) for tensor in tensors]
    if found == sorted(found):
        return tensors
    return tuple([tensors[place] for place in sorted(range(len(found)), key=found.__getitem__)])
