"""Tensors made whole from a model's metadata: names, datatypes, shapes. Pure.

`Complete` asks for the metadata; here it is applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.ir.context import ModelRef, Need
from gateway.ir.data import ArrayData, ItemsData, RawData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensor import Shape, Tensor, as_items, items_tensor

ALL_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def is_incomplete(tensors: Sequence[Tensor], needs: frozenset[Need]) -> bool:
    """Return whether some tensor is without something that *needs* names."""
    for tensor in tensors:
        if tensor.name and tensor.datatype is not None and tensor.shape is not None:
            continue
        if not tensor.name and Need.NAMES in needs:
            return True
        if tensor.datatype is None and Need.DATATYPES in needs:
            return True
        if tensor.shape is None and Need.SHAPES in needs:
            return True
    return False


def is_raw_binary_request(tensors: Sequence[Tensor]) -> bool:
    """Return whether this is one tensor of which nothing is known but its bytes.

    Source: Triton binary tensor extension, "Raw Binary Request".
    """
    if len(tensors) != 1:
        return False
    tensor = tensors[0]
    return not tensor.name and tensor.datatype is None and tensor.shape is None


@dataclass(frozen=True, slots=True)
class TensorCompleter:
    """The metadata that tensors are filled from.

    Attributes:
        kind: "input" or "output", for errors.
        model: For errors.
        declared: As the model declares them; a tensor without a name is the one at its place.
        batches: The first axis of a declared shape is the batch, and the batch is 1.
        failure: Raised when tensors and metadata do not fit: whose fault it is.
    """

    kind: str
    model: ModelRef
    declared: Sequence[TensorMetadata]
    batches: bool
    failure: type[GatewayError]

    def complete(self, tensors: Sequence[Tensor], needs: frozenset[Need]) -> tuple[Tensor, ...]:
        """Return *tensors* with what *needs* names filled in; shares the data.

        Raises:
            GatewayError: Of class `failure`: tensors and metadata do not fit together.
        """
        bare = is_raw_binary_request(tensors)
        named = {tensor.name for tensor in tensors if tensor.name}
        filled = []
        for place, tensor in enumerate(tensors):
            if tensor.name:
                known = self._named(tensor.name)
            else:
                known = self._placed(place, len(tensors), named)
            filled.append(self._whole(tensor, known, ALL_NEEDS if bare else needs, bare=bare))
        return tuple(filled)

    def _named(self, name: str) -> TensorMetadata:
        for known in self.declared:
            if known.name == name:
                return known
        names = ", ".join(repr(known.name) for known in self.declared) or "none"
        raise self._misfit(f"has no {self.kind} {name!r}; its {self.kind}s are {names}")

    def _placed(self, place: int, count: int, named: set[str]) -> TensorMetadata:
        if place >= len(self.declared):
            raise self._misfit(f"has {len(self.declared)} {self.kind}s, the message has {count}")
        known = self.declared[place]
        if known.name in named:
            raise self._misfit(
                f"has {self.kind} {known.name!r} at place {place}, where the message has one "
                "without a name, and another one by that name"
            )
        return known

    def _whole(
        self, tensor: Tensor, known: TensorMetadata, needs: frozenset[Need], *, bare: bool
    ) -> Tensor:
        name = tensor.name or (known.name if Need.NAMES in needs else "")
        datatype, shape = tensor.datatype, tensor.shape
        if datatype is None and (Need.DATATYPES in needs or Need.SHAPES in needs):
            datatype = known.datatype
            if datatype is None:
                raise self._misfit(f"does not tell the datatype of {self.kind} {known.name!r}")
        filled = Tensor(name, datatype, shape, tensor.data, tensor.parameters)
        if bare and datatype is Datatype.BYTES:
            return self._one_element(filled, known)
        if shape is None and Need.SHAPES in needs:
            return self._shaped(filled, known)
        if shape is not None and tensor.datatype is None and datatype is not None:
            self._check_size(filled, datatype, shape)
        return filled

    def _one_element(self, tensor: Tensor, known: TensorMetadata) -> Tensor:
        """All bytes are the one element, without a length before it."""
        shape = tuple(1 if dim < 0 else dim for dim in known.shape or (1,))
        if self.batches:
            shape = (1, *shape[1:])
        if math.prod(shape) != 1 or not isinstance(tensor.data, RawData):
            raise self._misfit(
                f"has {self.kind} {known.name!r} of shape {_text(known.shape)}; "
                "raw bytes can only be one BYTES element"
            )
        return items_tensor(tensor.name, shape, [tensor.data.view], tensor.parameters)

    def _shaped(self, tensor: Tensor, known: TensorMetadata) -> Tensor:
        if isinstance(tensor.data, ArrayData):
            shape: Shape = tensor.data.array.shape
        else:
            shape = self._fit(tensor, known, self._count(tensor, known))
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data, tensor.parameters)

    def _count(self, tensor: Tensor, known: TensorMetadata) -> int:
        """Return how many elements the data holds."""
        datatype = tensor.datatype
        if datatype is None or datatype is Datatype.BYTES:
            return len(as_items(tensor))
        count, rest = divmod(tensor.nbytes, datatype.size_bytes)
        if rest:
            raise self._misfit(
                f"has {self.kind} {known.name!r} of {datatype.name}, "
                f"{tensor.nbytes} bytes are not a whole number of its elements"
            )
        return count

    def _fit(self, tensor: Tensor, known: TensorMetadata, count: int) -> Shape:
        """Return the only shape of *count* elements that the declared one allows."""
        if known.shape is None:
            if count == 1 and isinstance(tensor.data, ItemsData):
                return (1,)  # one text, or the bytes of one
            raise self._misfit(f"does not tell the shape of {self.kind} {known.name!r}")
        dims = list(known.shape)
        if self.batches and dims:
            dims[0] = 1
        variable = [axis for axis, dim in enumerate(dims) if dim < 0]
        what = f"has {self.kind} {known.name!r} of shape {_text(known.shape)}"
        if len(variable) > 1 and count == 1:  # no other shape has one element
            dims = [1 if dim < 0 else dim for dim in dims]
            variable = []
        if len(variable) > 1:
            raise self._misfit(f"{what}, data without a shape fits at most one variable dimension")
        fixed = math.prod(dim for dim in dims if dim >= 0)
        if variable:
            dims[variable[0]] = count // fixed if fixed else 0
        if math.prod(dims) != count:
            batch = " with batch 1" if self.batches else ""
            raise self._misfit(f"{what}{batch}, which {count} elements do not fill")
        return tuple(dims)

    def _check_size(self, tensor: Tensor, datatype: Datatype, shape: Shape) -> None:
        expected = math.prod(shape)
        found = self._count(tensor, TensorMetadata(tensor.name, datatype, shape))
        if found != expected:
            raise self._misfit(
                f"has {self.kind} {tensor.name!r} of {datatype.name}: the data has {found} "
                f"elements, shape {list(shape)} needs {expected}"
            )

    def _misfit(self, text: str) -> GatewayError:
        return self.failure(f"model {str(self.model)!r} {text}", model=self.model)


def _text(shape: Shape | None) -> str:
    return "unknown" if shape is None else str(list(shape))
