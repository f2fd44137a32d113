"""Runs a task on texts as calls of tensors: chooses by the task, and counts tokens.

A request with more rows than a call of the model may have becomes several calls, one after the
other, so that one request never holds more of a model than one call. They share the deadline of the
request, and all fail if one does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import NO_PARAMETERS, ModelRef, Need, Parameter, Parameters
from gateway.ir.errors import InvalidMember
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.rows import IndependentRows
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_items, as_numpy, items_tensor
from gateway.ir.text_tasks import (
    PROMPT_TOKENS,
    CompletionsForm,
    EmbeddingsForm,
    RerankForm,
    TextForms,
)
from gateway.policies.texts.signature import TaskModel, output_of

F = TypeVar("F", EmbeddingsForm, RerankForm, CompletionsForm)

_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})

Infer = Callable[[InferRequest], Awaitable[InferResponse]]
"""Sends one inference to the model."""

Stream = Callable[[InferRequest], Awaitable[AsyncIterator[InferResponse]]]
"""Sends one inference to the model, and returns its replies."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One call with a task, before its model.

    Attributes:
        call: The call.
        metadata: Of the model, with the maximum batch size.
        infer: Sends calls of tensors.
        stream: Sends calls of tensors with any number of replies.
    """

    call: InferRequest
    metadata: ModelMetadata
    infer: Infer
    stream: Stream

    @property
    def ref(self) -> ModelRef:
        """The model, as the call names it."""
        return self.call.model or ModelRef(self.metadata.name)

    def model(self, task: str) -> TaskModel:
        """Return the model for the task of this key."""
        return TaskModel(self.call, self.metadata, task)

    def forms(self) -> TextForms | None:
        """Return what the configuration declares for the protocol of the caller, or for another."""
        declared = self.metadata.declarations
        found = declared.get(self.call.context.protocol.partition(".")[0])
        if isinstance(found, TextForms):
            return found
        return next((each for each in declared.values() if isinstance(each, TextForms)), None)

    def plain(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str] = (),
        parameters: Parameters = NO_PARAMETERS,
        rows: IndependentRows | None = None,
    ) -> InferRequest:
        """Return the call of tensors with these inputs.

        Args:
            inputs: With names.
            outputs: Names of the outputs to ask for; none for all.
            parameters: Further parameters of the request.
            rows: What is known of rows that do not depend on one another.
        """
        call = self.call
        return call.changed(
            inputs=tuple(inputs),
            outputs=tuple([RequestedOutput(name) for name in outputs]),
            parameters={**call.parameters, **parameters},
            texts=None,
            rows=rows,
            context=call.context.changed(needs=_NEEDS),
        )

    def output_names(self, *names: str) -> tuple[str, ...]:
        """Return the outputs to ask for: none where the model has no others."""
        wanted = [name for name in names if name]
        return () if len(wanted) == len(self.metadata.outputs) else tuple(wanted)

    def check_count(self, member: str, found: int, most: int, key: str) -> None:
        """Raise InvalidMember for more than *most* items."""
        if found > most:
            raise InvalidMember(
                f"{member!r} has {found} items; expected at most {most} ({key})",
                member=member,
                model=self.ref,
            )


def texts_of(tensor: Tensor) -> Sequence[bytes | memoryview]:
    """Return the elements of an input with texts."""
    return as_items(tensor)


def text_tensor(name: str, shape: tuple[int, ...], items: Sequence[bytes | memoryview]) -> Tensor:
    """Return texts as an input of a model."""
    return items_tensor(name, shape, items)


def count_tokens(model: TaskModel, reply: InferResponse, name: str) -> int:
    """Return the sum of the output that has numbers of tokens; 0 for none."""
    if not name:
        return 0
    tensor = output_of(model, reply, name)
    if tensor.datatype is None or not tensor.datatype.is_integer:
        model.refuse(f"whole numbers in the output {name!r} ({model.key}: {{tokens: NAME}})")
    return max(0, int(as_numpy(tensor).sum()))


def task_reply(
    run: TaskRun, output: Tensor, tokens: int | None, **others: Parameter
) -> InferResponse:
    """Return the reply to a task, with the number of tokens where it is known.

    Its output has the name of the model's, by which rules of comparisons find it.
    """
    parameters = others if tokens is None else {**others, PROMPT_TOKENS: tokens}
    return InferResponse(model=run.ref, outputs=(output,), id=run.call.id, parameters=parameters)


def is_ids(tensor: Tensor) -> bool:
    """Return whether an input of a task has token ids."""
    return tensor.datatype is Datatype.INT64
