"""Completion of tensors from a model's metadata: names, datatypes, shapes.

`Complete` gets the metadata.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import GatewayError, InvalidTensor
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, Tensor, as_items, items_tensor

ALL_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def is_raw_binary_request(tensors: Sequence[Tensor]) -> bool:
    """Return whether *tensors* is a single tensor without name, datatype and shape.

    Source: Triton binary tensor extension, "Raw Binary Request".
    """
    if len(tensors) != 1:
        return False
    tensor = tensors[0]
    return not tensor.name and tensor.datatype is None and tensor.shape is None


@dataclass(frozen=True, slots=True)
class TensorCompleter:
    """Completes tensors from a model's metadata.

    Attributes:
        kind: "input" or "output", for errors.
        model: For errors.
        declared: The model's declarations; a tensor without a name is matched by position.
        has_batch: The first axis of a declared shape is the batch, and the batch size is 1.
        failure: Raised if tensors and metadata do not match.
    """

    kind: str
    model: ModelRef
    declared: Sequence[TensorMetadata]
    has_batch: bool
    failure: type[GatewayError]

    def complete(self, tensors: Sequence[Tensor], needs: frozenset[Need]) -> tuple[Tensor, ...]:
        """Return *tensors* with the missing parts that are in *needs*; shares the data.

        Raises:
            GatewayError: Of class `failure`: tensors and metadata do not match.
        """
        is_raw = is_raw_binary_request(tensors)
        needed = ALL_NEEDS if is_raw else needs
        declared = self.declared_of(tensors)  # all names come before the first elements
        return tuple(
            [
                self._complete(tensor, found, needed, is_raw=is_raw)
                for tensor, found in zip(tensors, declared, strict=True)
            ]
        )

    def declared_of(self, tensors: Sequence[Tensor]) -> list[TensorMetadata]:
        """Return the declaration of each of *tensors*, by its name or its position.

        Raises:
            GatewayError: Of class `failure`: one has none.
        """
        names = {tensor.name for tensor in tensors if tensor.name}
        return [
            self._by_name(tensor.name)
            if tensor.name
            else self._by_position(position, len(tensors), names)
            for position, tensor in enumerate(tensors)
        ]

    def _by_name(self, name: str) -> TensorMetadata:
        for declared in self.declared:
            if declared.name == name:
                return declared
        names = ", ".join(repr(declared.name) for declared in self.declared) or "none"
        raise self._mismatch(f"has no {self.kind} {name!r}; its {self.kind}s are {names}")

    def _by_position(self, position: int, count: int, names: set[str]) -> TensorMetadata:
        if position >= len(self.declared):
            raise self._mismatch(f"has {len(self.declared)} {self.kind}s, the message has {count}")
        declared = self.declared[position]
        if declared.name in names:
            raise self._mismatch(
                f"has {self.kind} {declared.name!r} at position {position}, where the message has "
                "an unnamed one, but the message also has one with this name"
            )
        return declared

    def _complete(
        self, tensor: Tensor, declared: TensorMetadata, needs: frozenset[Need], *, is_raw: bool
    ) -> Tensor:
        name = tensor.name or (declared.name if Need.NAMES in needs else "")
        datatype, shape = tensor.datatype, tensor.shape
        if datatype is None and (Need.DATATYPES in needs or Need.SHAPES in needs):
            datatype = declared.datatype
            if datatype is None:
                raise self._mismatch(f"declares no datatype for {self.kind} {declared.name!r}")
        completed = Tensor(name, datatype, shape, tensor.data, tensor.parameters)
        if is_raw and datatype is Datatype.BYTES:
            return self._one_element(completed, declared)
        if shape is None and Need.SHAPES in needs:
            return self._with_shape(completed, declared)
        if shape is not None and tensor.datatype is None and datatype is not None:
            self._check_size(completed, datatype, shape)
        return completed

    def _one_element(self, tensor: Tensor, declared: TensorMetadata) -> Tensor:
        """Return all bytes as a single element, without a length prefix.

        Only the first axis may be variable: it can be a batch that the server does not report.

        Source: Triton binary tensor extension, "Raw Binary Request".
        """
        shape = declared.shape or (1,)
        if self.has_batch or shape[0] < 0:
            shape = (1, *shape[1:])
        if any(dim != 1 for dim in shape) or not isinstance(tensor.data, RawData):
            raise self._mismatch(
                f"has {self.kind} {declared.name!r} of shape {_text(declared.shape)}; "
                "raw bytes can only be one BYTES element"
            )
        return items_tensor(tensor.name, shape, [tensor.data.view], tensor.parameters)

    def _with_shape(self, tensor: Tensor, declared: TensorMetadata) -> Tensor:
        if isinstance(tensor.data, ArrayData):
            shape: Shape = tensor.data.array.shape
        else:
            shape = self._find_shape(tensor, declared, self._count(tensor, declared))
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data, tensor.parameters)

    def _count(self, tensor: Tensor, declared: TensorMetadata) -> int:
        """Return the number of elements of the data."""
        datatype = tensor.datatype
        if datatype is None or datatype is Datatype.BYTES:
            try:
                return len(as_items(tensor))
            except InvalidTensor as error:
                if isinstance(error, self.failure):
                    raise
                raise self.failure(error.message, model=self.model) from error
        count, rest = divmod(tensor.nbytes, datatype.size_bytes)
        if rest:
            raise self._mismatch(
                f"has {self.kind} {declared.name!r} of {datatype.name}, and {tensor.nbytes} bytes "
                f"are not a multiple of {datatype.size_bytes}"
            )
        return count

    def _find_shape(self, tensor: Tensor, declared: TensorMetadata, count: int) -> Shape:
        """Return the only shape of *count* elements that the declared shape allows."""
        if declared.shape is None:
            if count == 1 and isinstance(tensor.data, ItemsData):
                return (1,)  # a single BYTES element
            raise self._mismatch(f"declares no shape for {self.kind} {declared.name!r}")
        dims = list(declared.shape)
        if self.has_batch and dims:
            dims[0] = 1
        variable = [axis for axis, dim in enumerate(dims) if dim < 0]
        text = f"has {self.kind} {declared.name!r} of shape {_text(declared.shape)}"
        if len(variable) > 1 and count == 1 and isinstance(tensor.data, ItemsData):
            # Only one shape has one element.
            dims = [1 if dim < 0 else dim for dim in dims]
            variable = []
        if len(variable) > 1:
            raise self._mismatch(f"{text}; data without a shape allows one variable dimension")
        fixed = math.prod(dim for dim in dims if dim >= 0)
        if variable:
            dims[variable[0]] = count // fixed if fixed else 0
        if math.prod(dims) != count:
            batch = " with batch size 1" if self.has_batch else ""
            raise self._mismatch(f"{text}{batch}, which does not match {count} elements")
        return tuple(dims)

    def _check_size(self, tensor: Tensor, datatype: Datatype, shape: Shape) -> None:
        expected = math.prod(shape)
        found = self._count(tensor, TensorMetadata(tensor.name, datatype, shape))
        if found != expected:
            raise self._mismatch(
                f"has {self.kind} {tensor.name!r} of {datatype.name}: the data has {found} "
                f"elements, shape {list(shape)} needs {expected}"
            )

    def _mismatch(self, text: str) -> GatewayError:
        return self.failure(f"model {str(self.model)!r} {text}", model=self.model)


def _text(shape: Shape | None) -> str:
    return "unknown" if shape is None else str(list(shape))
