"""FixedOutputs: the outputs of one server's models whose sizes are known before a reply.

Triton tells that the memory for an output is too small only after the model has run. So an output
is requested in shared memory if the model's configuration fixes its shape, all but the batch axis,
and a reply as bytes had that shape. All other outputs come as bytes.

Source: Triton's shared memory extension; benchmarks/NOTES.md, "Shared memory of Triton".
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from gateway.concurrency.background import start_background
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import InferRequest, InferResponse, ModelConfigRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, Unavailable, UpstreamError, UpstreamProtocolError
from gateway.ir.metadata import ModelConfiguration
from gateway.ir.tensors.data import RawData, SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.policies.hand_over.pool import LEAST_BYTES
from gateway.policies.shared_memory.policy import with_data
from gateway.service import Service

log = structlog.get_logger(__name__)

_MODELS: Final = 1024
_SKIPPED: Final = 100
_QUESTION_S: Final = 5.0
_TOO_SMALL: Final = "shared memory size specified with the request"


@dataclass(slots=True)
class _Model:
    """What is known of one model.

    Attributes:
        skipped: How many replies are not looked at; infinite for a model that is not asked again.
        item_bytes: Its outputs, and the bytes of each, without the batch axis; 0 for one that
            always comes as bytes.
        has_batch_axis: Whether its tensors have one.
        has_all: Whether a reply to a call that named no outputs had all of them.
    """

    skipped: float = _SKIPPED
    item_bytes: Mapping[str, int] = field(default_factory=dict)
    has_batch_axis: bool = False
    has_all: bool = False


class FixedOutputs:
    """Learns from replies as bytes which outputs can come in shared memory.

    Args:
        questions: Asks the server for the configuration of a model.
        most_bytes: Most bytes of a reply that the client of the server accepts.
    """

    def __init__(self, questions: Service, most_bytes: int) -> None:
        self._questions = questions
        self._most_bytes = most_bytes
        self._models: BoundedDict[ModelRef | None, _Model] = BoundedDict(_MODELS)
        self._question: asyncio.Task[None] | None = None

    def has_interest(self, call: InferRequest) -> bool:
        """Return whether the reply to *call* may be large, or is to be learnt from."""
        model = self._models.get(call.model)
        if model is None or model.item_bytes or not model.skipped:
            return True
        model.skipped -= 1
        return False

    def sizes(self, call: InferRequest) -> dict[str, int]:
        """Return the outputs to request, with the bytes of each; 0 for one that comes as bytes.

        Empty if the call is to be sent as it is.
        """
        model = self._models.get(call.model)
        if model is None or not model.item_bytes or call.batch_size is not None:
            return {}
        if any(one.classes or one.shared is not None for one in call.outputs):
            return {}
        if not (call.outputs or model.has_all):
            return {}
        batch = _batch_of(call) if model.has_batch_axis else 1
        names = [one.name for one in call.outputs] or model.item_bytes
        sizes = {name: batch * model.item_bytes.get(name, 0) for name in names}
        large = {name: size if size >= LEAST_BYTES else 0 for name, size in sizes.items()}
        return large if 0 < sum(large.values()) <= self._most_bytes else {}

    def learn(self, call: InferRequest, reply: InferResponse) -> None:
        """Note the outputs of a reply as bytes."""
        model = self._models.get(call.model)
        if model is not None and model.item_bytes:
            if not call.outputs:
                model.has_all = {one.name for one in reply.outputs} == model.item_bytes.keys()
        elif model is not None and model.skipped:
            model.skipped -= 1  # of a call with large inputs
        elif not any(map(_is_large, reply.outputs)):
            self._models[call.model] = _Model()
        elif self._question is None or self._question.done():
            self._models[call.model] = _Model()  # as if it were small, until the server has told
            found = {one.name: one.nbytes for one in reply.outputs}
            question = self._ask(call.model, found, _batch_of(call), has_all=not call.outputs)
            self._question = start_background(question, "learn outputs")

    async def _ask(
        self, ref: ModelRef | None, found: Mapping[str, int], batch: int, *, has_all: bool
    ) -> None:
        """Compare the bytes of the outputs *found* in a reply with the model's configuration."""
        try:
            async with asyncio.timeout(_QUESTION_S):
                configuration = await self._questions(ModelConfigRequest(model=ref))
        except (GatewayError, TimeoutError) as error:
            log.debug("configuration unavailable", model=str(ref), reason=repr(error))
            return  # a later reply asks again
        item_bytes = _item_bytes(configuration)
        has_batch_axis = configuration.max_batch_size > 0
        items = batch if has_batch_axis else 1
        differs = any(
            size and found.get(name) not in (None, items * size)
            for name, size in item_bytes.items()
        )
        if configuration.decoupled or differs or not any(item_bytes.values()):
            self.exclude(ref)
            return
        has_all = has_all and found.keys() == item_bytes.keys()
        self._models[ref] = _Model(0, item_bytes, has_batch_axis, has_all)

    def exclude(self, ref: ModelRef | None) -> None:
        """Let the replies of a model come as bytes, until it is loaded again."""
        self._models[ref] = _Model(skipped=math.inf)
        log.debug("outputs come as bytes", model=str(ref))

    def forget(self, ref: ModelRef | None) -> None:
        """Learn all versions of a model again, because it may be another one now."""
        self.close()
        for each in [*self._models]:
            if ref is None or each is None or each.name == ref.name:
                del self._models[each]

    def close(self) -> None:
        """End the question that is asked."""
        if self._question is not None:
            self._question.cancel()

    def with_data(
        self, call: InferRequest, reply: InferResponse, memories: Mapping[str, memoryview]
    ) -> InferResponse:
        """Return *reply* with its outputs in shared memory as views of *memories*, without a copy.

        Raises:
            Unavailable: An output has no size, or exceeds its memory.
        """
        if not memories:
            self.learn(call, reply)
            return reply
        outputs = []
        for tensor in reply.outputs:
            memory = memories.get(tensor.name)
            if memory is None or type(tensor.data) is not SharedMemoryData:
                outputs.append(tensor)
                continue
            size = _size_of(tensor)
            if size != len(memory):
                self.exclude(call.model)
            if size is None or size > len(memory):
                raise _lost_reply(call)
            outputs.append(with_data(tensor, RawData(memory[:size])))
        origin = reply.origin
        kept = origin.rewritten() if origin is not None and origin.unknown else None
        return reply.changed(outputs=tuple(outputs), origin=kept)

    def check_error(self, call: InferRequest, error: GatewayError) -> None:
        """Check that *error*, of a call with outputs in shared memory, is not the fault of these.

        Where its text may be withheld, the outputs are learnt again.

        Raises:
            Unavailable: An output exceeds its memory, or a call that named no output lacks one. The
                model has run.
        """
        is_unnamed = not call.outputs and isinstance(error, UpstreamProtocolError)
        if is_unnamed or _TOO_SMALL in error.message:
            self.exclude(call.model)
            raise _lost_reply(call) from error
        if isinstance(error, UpstreamError):
            self._models.pop(call.model, None)


def _lost_reply(call: InferRequest) -> Unavailable:
    return Unavailable(
        f"model {str(call.model)!r} replied with other outputs than its configuration has, and the "
        "reply was lost; further replies are read as they come",
        model=call.model,
    )


def _batch_of(call: InferRequest) -> int:
    """Return the size of the first axis of all inputs; 0 if it differs."""
    found = {tensor.shape[0] if tensor.shape else 0 for tensor in call.inputs}
    return found.pop() if len(found) == 1 else 0


def _is_large(tensor: Tensor) -> bool:
    return type(tensor.data) is RawData and tensor.data.view.nbytes >= LEAST_BYTES


def _size_of(tensor: Tensor) -> int | None:
    """Return the bytes of a tensor; None where its description does not tell them."""
    datatype, shape = tensor.datatype, tensor.shape
    if datatype is None or datatype is Datatype.BYTES or shape is None:
        return None
    return datatype.size_bytes * math.prod(shape)


def _item_bytes(configuration: ModelConfiguration) -> dict[str, int]:
    """Return the bytes of each output without the batch axis; 0 for one that varies."""
    found: dict[str, int] = {}
    outputs: Any = configuration.document.get("output")
    for output in outputs if isinstance(outputs, list) else ():
        datatype = Datatype.__members__.get(str(output.get("data_type")).removeprefix("TYPE_"))
        dims: Any = output.get("dims") or [-1]
        is_fixed = all(type(dim) is int and dim > 0 for dim in dims)
        found[str(output.get("name"))] = (
            datatype.size_bytes * math.prod(dims) if datatype is not None and is_fixed else 0
        )
    return found
