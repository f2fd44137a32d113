"""Models of a server, the values that rules send to them, and what must come back, to the bit.

Elements are checked here once more, apart from the codecs: these read what servers send
leniently, and would hide a fault.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.cli.calling.tensors import tensor_of
from gateway.conformance.rules import load_data
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32, fp32_of_bf16
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor

NAMES: Final = frozenset(each.name for each in Datatype)
_FLOATS: Final = frozenset(map(Datatype, ("FP16", "BF16", "FP32", "FP64")))
_MOST_CASES: Final = 8
_LARGE: Final = 5000
_MOST_ELEMENTS: Final = 1 << 18


class DeclaredTensor(NamedTuple):
    """An input or an output as the server's metadata have it; -1 is a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InferenceCase:
    """Inputs, and the outputs that must come back; none where the answer is not known."""

    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class CertifiedModel:
    """A model of the server.

    Attributes:
        expect: `identity`, `sum`, or the path of a file with inputs and outputs; "" if nothing is
            known of its answers.
        fault: Why its metadata cannot be read; "" if they can.
    """

    name: str
    versions: tuple[str, ...] = ()
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    expect: str = ""
    fault: str = ""

    @property
    def datatypes(self) -> tuple[str, ...]:
        """Those of its inputs."""
        return tuple(each.datatype for each in self.inputs)

    @property
    def has_sequences(self) -> bool:
        """Whether it takes sequences, as far as its configuration is known."""
        return self.config.get("sequence_batching") is not None

    @property
    def takes_numbered_sequences(self) -> bool:
        """Whether ids of its sequences are numbers: others can make it hang."""
        return self.has_sequences and "TYPE_STRING" not in json.dumps(self.config)

    @property
    def is_decoupled(self) -> bool:
        """Whether it sends any number of replies, as far as its configuration is known."""
        policy = self.config.get("model_transaction_policy")
        return isinstance(policy, dict) and bool(policy.get("decoupled"))

    def cases(self, values: str, datatype: str, seed: int) -> list[InferenceCase]:
        """Return the inferences that try the values of a set for one datatype; "" for all.

        `empty` and `large` are the set `plain` without elements, or with very many.

        Raises:
            ValueError: A file is wrong, the model has no sum, or an input has no such values.
        """
        if self.expect not in {"", "identity", "sum"}:
            return [_case_of_file(Path(self.expect))]
        if self.expect != "identity":
            values, datatype = "plain", ""
        sent = [
            _tensors(each, values if datatype in {"", each.datatype} else "plain", seed)
            for each in self.inputs
        ]
        most = max(map(len, sent), default=0)
        rows = [tuple(each[at % len(each)] for each in sent) for at in range(most)]
        return [InferenceCase(row, self._expected(row)) for row in rows[:_MOST_CASES]]

    def _expected(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not self.expect:
            return ()
        names = [each.name for each in self.outputs]
        if self.expect == "identity":
            return tuple(each.renamed(name) for name, each in zip(names, inputs, strict=False))
        kinds = {(each.datatype, each.shape) for each in inputs}
        if len(kinds) != 1 or inputs[0].datatype is Datatype.BYTES:
            raise ValueError(f"model {self.name!r} has no sum of its inputs")
        arrays = list(map(_numbers, inputs))
        # The values of the set are small: no sum is rounded or wraps.
        total = sum(arrays[1:], arrays[0])
        return (_of_numbers(names[0], inputs[0].datatype, total),)


def named_model(name: str, expect: str) -> CertifiedModel:
    """Return a model of which the server tells nothing; its tensors are those of a file."""
    try:
        found = CertifiedModel(name, expect=expect).cases("plain", "", 0) if expect else []
    except ValueError as error:
        return CertifiedModel(name, expect=expect, fault=str(error))
    case = found[0] if found else InferenceCase()
    inputs, outputs = (
        tuple(DeclaredTensor(each.name, name_of(each), shape_of(each)) for each in tensors)
        for tensors in (case.inputs, case.outputs)
    )
    return CertifiedModel(name, inputs=inputs, outputs=outputs, expect=expect)


def _sets() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    sets: Mapping[str, Mapping[str, Sequence[Any]]] = load_data("values.yaml")
    return sets


def has_values(name: str, datatype: str) -> bool:
    """Return whether a set has values of a datatype; those of some sets are `plain` ones."""
    return datatype in _sets().get(name, _sets()["plain"])


def _tensors(declared: DeclaredTensor, values: str, seed: int) -> list[Tensor]:
    """Return as many tensors of an input as it takes to send each value of a set once."""
    name, datatype, shape = declared
    elements = list(_sets().get(values, {}).get(datatype) or _sets()["plain"].get(datatype) or ())
    if not elements:
        raise ValueError(f"input {name!r} has the datatype {datatype!r}")
    if values == "plain":
        random.Random(seed).shuffle(elements)  # noqa: S311  # no secret
    dims = [1 if size < 0 else size for size in shape]
    free = free_dimensions(shape)
    if free:
        count = {"empty": 0, "large": _LARGE}.get(values, len(elements))
        dims[free[-1]] = -(-count // max(1, math.prod(dims)))
    size = math.prod(dims)
    if size > _MOST_ELEMENTS:
        raise ValueError(f"input {name!r} has {size} elements: too many to try")
    step = min(size, len(elements)) or len(elements)
    chosen = [
        [elements[(start + at) % len(elements)] for at in range(size)]
        for start in range(0, len(elements), step)
    ]
    return [_made(name, Datatype(datatype), dims, each) for each in chosen]


def free_dimensions(shape: Sequence[int]) -> list[int]:
    """Return the dimensions of variable size, but for a first one of several.

    That one is probably a batch, whose size has a limit.
    """
    return [at for at, size in enumerate(shape) if size < 0 and (at or len(shape) == 1)]


def _made(name: str, datatype: Datatype, shape: Sequence[int], elements: Sequence[Any]) -> Tensor:
    if datatype is Datatype.BYTES:
        return items_tensor(name, tuple(shape), [bytes.fromhex(each) for each in elements])
    dtype = datatype.numpy_dtype
    array = np.array(elements, f"<u{dtype.itemsize}" if datatype in _FLOATS else dtype)
    return array_tensor(name, array.view(dtype).reshape(shape), datatype)


def _case_of_file(path: Path) -> InferenceCase:
    """Return what a file has: `inputs` and `outputs` as in the JSON of Open Inference.

    Raises:
        ValueError: It cannot be read, or a tensor is wrong.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
        return InferenceCase(*(tuple(map(_of_json, found[key])) for key in ("inputs", "outputs")))
    except (OSError, ValueError, LookupError, TypeError, GatewayError) as error:
        raise ValueError(
            f"{path} has no 'inputs' and 'outputs' of Open Inference: {error}"
        ) from error


def _of_json(entry: Mapping[str, Any]) -> Tensor:
    shape = tuple(entry["shape"])
    return tensor_of(entry["name"], entry["data"], Datatype(entry["datatype"]), shape)


def name_of(tensor: Tensor) -> str:
    """Return the name of the datatype."""
    assert tensor.datatype is not None  # noqa: S101  # of all tensors here
    return tensor.datatype.name


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape."""
    assert tensor.shape is not None  # noqa: S101  # of all tensors here
    return tensor.shape


def elements_of(tensor: Tensor) -> list[Any]:
    """Return numbers, truth values, or bytes."""
    if tensor.datatype is Datatype.BYTES:
        return list(map(bytes, as_items(tensor)))
    found: list[Any] = _numbers(tensor).ravel().tolist()
    return found


def tensor_from(
    name: str, datatype: str, shape: tuple[int, ...], elements: Sequence[Any]
) -> Tensor:
    """Return elements of JSON or of a message as a tensor.

    Raises:
        ValueError: An element is none of the datatype, or there are too few or too many.
    """
    if len(elements) != math.prod(shape):
        raise ValueError(f"it has {len(elements)} elements, and the shape {list(shape)}")
    kind = Datatype(datatype)
    for at, element in enumerate(elements):
        if not _fits(kind, element):
            shown = json.dumps(element, default=repr)[:40]
            raise ValueError(f"element {at} is {shown}, which is no {datatype}")
    if kind is Datatype.BYTES:
        # Bytes that are no text came as surrogates; see `replies`.
        texts = [
            e.encode("utf-8", "surrogateescape") if isinstance(e, str) else e for e in elements
        ]
        return items_tensor(name, shape, texts)
    array = np.array(elements, np.float64 if kind in _FLOATS else kind.numpy_dtype)
    return _of_numbers(name, kind, array.reshape(shape))


def _fits(datatype: Datatype, element: Any) -> bool:
    if datatype is Datatype.BYTES:
        return isinstance(element, str | bytes)
    if datatype is Datatype.BOOL or isinstance(element, bool):
        return datatype is Datatype.BOOL and isinstance(element, bool)
    if datatype in _FLOATS:
        return isinstance(element, int | float)
    bounds = np.iinfo(datatype.numpy_dtype)
    return isinstance(element, int) and bounds.min <= element <= bounds.max


def _numbers(tensor: Tensor) -> npt.NDArray[Any]:
    array = as_numpy(tensor)
    return fp32_of_bf16(array) if tensor.datatype is Datatype.BF16 else array


def _of_numbers(name: str, datatype: Datatype | None, array: npt.NDArray[Any]) -> Tensor:
    assert datatype is not None  # noqa: S101  # of all tensors here
    with np.errstate(over="ignore"):
        if datatype is Datatype.BF16:
            return array_tensor(name, bf16_of_fp32(array.astype(np.float32)), datatype)
        return array_tensor(name, array.astype(datatype.numpy_dtype), datatype)
