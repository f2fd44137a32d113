"""Finds the inputs and outputs of a model that a task on texts uses, and the rows of one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidMember, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.rows import IndependentRows
from gateway.ir.tensors.tensor import Shape, Tensor

UNSUPPORTED_MODEL: Final = "unsupported_model"
ROWS: Final = IndependentRows()
_WHOLE: Final = frozenset({Datatype.INT8, Datatype.UINT8})
_SHOWN: Final = 16


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows a call of a model has, and their shape.

    Attributes:
        most: Most rows of one call; None for any number.
        item: The axes after the one that counts rows; None where a call has one row and no axis
            counts it.
        single: The shape of a call with one row, if no axis counts rows.
    """

    most: int | None
    item: Shape = ()
    single: Shape | None = None

    @property
    def independent(self) -> IndependentRows | None:
        """What is known of the rows of a call; None where no axis counts them."""
        return ROWS if self.single is None else None

    def shape(self, count: int) -> Shape:
        """Return the shape of *count* rows."""
        return (count, *self.item) if self.single is None else self.single


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A model before which a task runs.

    Attributes:
        call: The call of the task.
        metadata: With the maximum batch size.
        task: The key of the task in the configuration.
    """

    call: InferRequest
    metadata: ModelMetadata
    task: str

    @property
    def ref(self) -> ModelRef:
        """The model, as the call names it."""
        return self.call.model or ModelRef(self.metadata.name)

    @property
    def key(self) -> str:
        """Where the task is declared in the configuration."""
        protocol = self.call.context.protocol.partition(".")[0] or "NAME"
        return f"models: {self.metadata.name}: protocols: {protocol}: {self.task}"

    def refuse(self, expected: str) -> NoReturn:
        """Raise the error for a model that cannot do the task.

        Args:
            expected: What is expected, and the key to write.
        """
        raise InvalidMember(
            f"model {str(self.ref)!r} cannot be used for {self.task}: it has the inputs "
            f"{_shown(self.metadata.inputs)} and the outputs {_shown(self.metadata.outputs)}; "
            f"expected {expected}",
            member="model",
            reason=UNSUPPORTED_MODEL,
            model=self.ref,
        )

    def input(self, name: str, key: str) -> TensorMetadata:
        """Return the input that a key of the configuration names."""
        found = self.find_input(name)
        if found is None:
            self.refuse(f"an input {name!r} ({self.key}: {{{key}: {name}}})")
        return found

    def find_input(self, name: str) -> TensorMetadata | None:
        """Return the input *name*; None if the model has none."""
        return next((each for each in self.metadata.inputs if each.name == name), None)

    def text_input(self, name: str, key: str) -> TensorMetadata:
        """Return the only BYTES input, or the input *name* where it is not empty."""
        found = self.metadata.inputs
        if name:
            found = (self.input(name, key),)
        if len(found) != 1 or found[0].datatype is not Datatype.BYTES:
            self.refuse(f"exactly one BYTES input ({self.key}: {{{key}: NAME}})")
        return found[0]

    def float_output(self, name: str, tokens: str = "", preferred: str = "") -> TensorMetadata:
        """Return the only output with numbers, or the output *name* where it is not empty.

        Args:
            name: From the configuration.
            tokens: Name of the output that has numbers of tokens.
            preferred: Name of the output to use where there are several.
        """
        outputs = [each for each in self.metadata.outputs if each.name != tokens]
        if name:
            outputs = [each for each in outputs if each.name == name]
        found = [each for each in outputs if each.datatype is not None and each.datatype.is_float]
        if len(found) != 1 and preferred:
            found = [each for each in found if each.name == preferred]
        if not found and len(outputs) == 1 and outputs[0].datatype in _WHOLE:
            found = outputs
        if len(found) != 1:
            self.refuse(f"exactly one floating-point output ({self.key}: {{output: NAME}})")
        return found[0]

    def rows(self, declared: TensorMetadata, *, one_by_one: bool = False) -> Rows:
        """Return how a call has rows of one element at the input *declared*.

        Args:
            declared: The input.
            one_by_one: A call has one row, whatever the input says.
        """
        shape = declared.shape
        if shape is None:
            return Rows(None)
        has_batch = self.metadata.supports_batching
        item = shape[1:]
        if any(dim not in (1, -1) for dim in (item if has_batch else shape)):
            self.refuse(
                f"an input {declared.name!r} with one element for each text, such as the shapes "
                "[-1] and [-1, 1]"
            )
        single = tuple([1] * len(item))
        if has_batch:
            most = 1 if one_by_one else self.metadata.max_batch_size
            return Rows(most or None, single)
        if not shape or shape[0] == 1 or one_by_one:
            return Rows(1, single=tuple([1] * len(shape)))
        return Rows(None, single)


def output_of(model: TaskModel, reply: InferResponse, name: str) -> Tensor:
    """Return the output *name* of a reply.

    Raises:
        UpstreamProtocolError: It is missing.
    """
    for tensor in reply.outputs:
        if tensor.name == name:
            return tensor
    raise UpstreamProtocolError(
        f"the reply lacks the output {name!r} that its model declares", model=model.ref
    )


def with_rows(model: TaskModel, tensor: Tensor, count: int) -> Shape:
    """Return the shape of an output that has a row for each of *count* rows.

    Raises:
        UpstreamProtocolError: It has another number of rows.
    """
    shape = tensor.shape or ()
    if shape[:1] == (count,):
        return shape
    if count == 1:  # a call of one row may have no axis for rows
        return (1, *shape)
    raise UpstreamProtocolError(
        f"the output {tensor.name!r} has the shape {list(shape)}; expected {count} rows, one for "
        "each text of the request",
        model=model.ref,
    )


def _shown(tensors: Sequence[TensorMetadata]) -> str:
    texts = [
        f"{each.name} {'?' if each.datatype is None else each.datatype.name} "
        f"{'?' if each.shape is None else list(each.shape)}"
        for each in tensors[:_SHOWN]
    ]
    return ", ".join(texts) or "none"
