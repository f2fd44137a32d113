"""Waits of many streams in virtual time: whatever they use together, none waits in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.instance_pool import InstancePool
from gateway.frontend.frontend import Frontend
from gateway.ir.bodies.streams import NotifyingStream
from gateway.ir.call_keys import key_of
from gateway.ir.calls import Call, InferRequest, InferResponse, StreamInferRequest, inference_of
from gateway.ir.context import CallSequence, Context, ModelRef
from gateway.ir.errors import GatewayError, NotSent, Unsupported
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.batch.policy import Batch
from gateway.policies.batch.queue import BatchRules
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.hedge import Hedge, HedgeRules
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryBudget, RetryRules
from gateway.policies.prioritize import PRIORITIES, Prioritize
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.transports.client_shares import client_shares
from gateway.transports.contract import ClientLimits, MemoryBudget, ServerLimits
from gateway.transports.grpc.admission import CallAdmission, GrpcSessionLimits
from gateway.transports.slots import upstream_slots
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from tests.fakes import FakeCodec
from tests.simulation.virtual_time import elapse, now, simulate

NAMES = ("plain", "batched", "pipeline", "nested", "hedged")
LEAVES_S = 1000.0
"""So late a client leaves that reads nothing."""
MOST_S = 200.0
"""All messages of an example, one after the other, take less."""
EXTERNAL_S = 0.02
HEDGE_S = 0.1


@dataclass(frozen=True)
class Message:
    """A message of a stream, and what its call meets on its way.

    Attributes:
        name: The model, whose route has a limit of one call.
        replies: How many replies it has; None for a call that is no stream.
        marks_end: Its only reply says that none follows.
        waits_s: For a lease, and then for each reply of the model.
        sequence: Its sequence; None for none.
        fails: Without a sequence, the first attempt is not sent, and another one follows.
    """

    name: str
    replies: int | None
    marks_end: bool
    waits_s: tuple[float, float]
    sequence: int | None
    fails: bool
    priority: str


@dataclass(frozen=True)
class Stream:
    """A stream of one client, which may read nothing."""

    messages: tuple[Message, ...]
    reads: bool


SECONDS = st.sampled_from([0.0, 0.001, 0.5])
MESSAGES = st.builds(
    Message,
    name=st.sampled_from(NAMES),
    replies=st.sampled_from([None, None, 1, 1, 2, 4]),
    marks_end=st.booleans(),
    waits_s=st.tuples(SECONDS, SECONDS),
    sequence=st.sampled_from([None, None, None, 7, 8]),
    fails=st.booleans(),
    priority=st.sampled_from(sorted(PRIORITIES)),
)
STREAMS = st.lists(
    st.builds(Stream, st.lists(MESSAGES, min_size=1, max_size=6).map(tuple), st.booleans()),
    min_size=1,
    max_size=4,
)


class Codec(FakeCodec):
    """Decodes a message, which is a number, to the call of the example."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def decode_call(self, wire: Any, _request_id: str = "", /) -> Call[Any]:
        number = int(bytes(wire.message[0]))
        message = self._messages[number]
        sequence = None
        if message.sequence is not None and message.name != "batched":
            sequence = CallSequence(message.sequence)
        call = InferRequest(
            model=ModelRef(message.name),
            id=f"{number}",
            inputs=(array_tensor("X", np.ones((1, 4), np.float32)),),
            sequence=sequence,
            context=Context(metadata=(("x-priority", message.priority),)),
        )
        if message.replies is None:
            return call
        return StreamInferRequest(model=call.model, request=call, context=call.context)

    def encode_reply(self, call: Call[Any], reply: Any, /) -> Any:
        return GrpcResponse((reply.id.encode(),))

    def encode_item(self, _call: StreamInferRequest, item: InferResponse, /) -> Any:
        return GrpcResponse((item.id.encode(),))

    def encode_error(self, _call: Call[Any] | None, error: GatewayError, /) -> Any:
        raise AssertionError(error)


class World:
    """Routes of one call at a time to one upstream with one connection and one instance."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.upstream = upstream_slots("in_flight", 1, ClientLimits(), "server")
        self.instances = InstancePool(ModelRef("m"), 1, 1024)
        self.failed: set[int] = set()
        batch = Batch(self.model, BatchRules(in_flight=1, max_delay_s=0.01), clock=now)
        inner: dict[str, Any] = {
            "plain": self.model,
            "batched": batch,
            "pipeline": self.pipeline,
            "nested": self.nested,
            "hedged": Hedge(self.model, HedgeRules(after_s=HEDGE_S, at_most=1.0), clock=now),
        }
        self.places = {name: ConcurrencyLimit(name, in_flight=1) for name in NAMES}
        self.routes: dict[str, Any] = {}
        for name, places in self.places.items():
            retries = RetryBudget(RetryRules(attempts=100, least=1000))
            limits = CallLimits(inner[name], places=places, retries=retries)
            self.routes[name] = Prioritize(limits, "normal", key_of("header:x-priority"))

    async def __call__(self, call: Call[Any], /) -> Any:
        """Wait for a decision and a lease, and then take the route."""
        if inference_of(call) is None:
            raise Unsupported("nobody asks for configurations")
        CALL_PATH.set(CallPath())  # each call is a task, but for those of the bystander
        await elapse(EXTERNAL_S)
        await elapse(self.message(call).waits_s[0])
        assert call.model is not None
        return await self.routes[call.model.name](call)

    def message(self, call: Call[Any]) -> Message:
        return self.messages[id_of(call)]

    async def pipeline(self, call: Call[Any], /) -> Any:
        """Run a step before the model, which has its own places."""
        inference = inference_of(call)
        assert inference is not None
        await self.model(inference)
        return await self.model(call)

    async def nested(self, call: Call[Any], /) -> Any:
        """Run a step that is a pipeline with a route of its own, whose place it needs beside."""
        inference = inference_of(call)
        assert inference is not None
        await self.routes["pipeline"](inference)
        return await self.pipeline(call)

    async def model(self, call: Call[Any], /) -> Any:
        """Run the only instance, over the only connection."""
        inference = inference_of(call)
        if inference is None:
            return METADATA
        message, number = self.message(call), id_of(call)
        if message.fails and message.sequence is None and number not in self.failed:
            self.failed.add(number)
            raise NotSent("the connection was refused")
        await self.upstream.wait(None)
        try:
            instance = await self.instances.acquire(inference.sequence)
        except BaseException:
            self.upstream.release()
            raise

        def end(_error: BaseException | None) -> None:
            self.instances.release(instance)
            self.upstream.release()

        if isinstance(call, StreamInferRequest):
            return NotifyingStream(self.replies(inference, message), end)
        try:
            await elapse(message.waits_s[1])
            rows = as_numpy(inference.inputs[0]).shape[0]
            outputs = (array_tensor("Y", np.ones((rows, 1), np.float32)),)
            return InferResponse(model=ModelRef("m"), id=inference.id, outputs=outputs)
        finally:
            end(None)

    async def replies(
        self, call: InferRequest, message: Message
    ) -> AsyncGenerator[InferResponse, None]:
        for _ in range(message.replies or 1):
            await elapse(message.waits_s[1])
            is_final = message.replies == 1 and message.marks_end
            outputs = (array_tensor("Y", np.ones((1, 1), np.float32)),)
            yield InferResponse(model=ModelRef("m"), id=call.id, outputs=outputs, is_final=is_final)


def id_of(call: Call[Any]) -> int:
    """Return the number of a message; a batch has that of one of its messages, or none."""
    inference = inference_of(call)
    return 0 if inference is None else int(inference.id or 0)


METADATA = ModelMetadata(
    name="m",
    inputs=(TensorMetadata("X", Datatype.FP32, (-1, 4)),),
    outputs=(TensorMetadata("Y", Datatype.FP32, (-1, 1)),),
    max_batch_size=8,
)


async def play(streams: list[Stream]) -> list[int]:
    """Play all streams at once; return how many replies each client has that reads.

    A bystander, whose calls take each route one after the other, must be served meanwhile.
    """
    messages = [message for stream in streams for message in stream.messages]
    bystander = [Message(name, None, False, (0.0, 0.0), None, False, "low") for name in NAMES]
    world = World(messages + bystander)
    budget = MemoryBudget(1 << 26)
    admission = CallAdmission(budget, ServerLimits(requests_in_flight=4))
    frontend: Frontend[GrpcRequest, GrpcResponse] = Frontend(Codec(world.messages), world)
    first, listening = 0, []
    for number, stream in enumerate(streams):
        last = first + len(stream.messages)
        wires = [request(each) for each in range(first, last)]
        client = client_shares(f"192.0.2.{number}", admission.slots, budget)
        limits = GrpcSessionLimits(admission, client)
        listening.append(asyncio.ensure_future(listen(frontend, wires, limits, stream.reads)))
        first = last
    await elapse(1.0)
    for number in range(first, first + len(NAMES)):
        await frontend.handle(request(number))
    readers = [task for task, stream in zip(listening, streams, strict=True) if stream.reads]
    counts = await asyncio.gather(*readers)
    assert now() < MOST_S, "a call waited for a client that does not read"
    await asyncio.gather(*listening)
    places = world.upstream, admission.slots, *world.places.values()
    assert [0] * len(places) == [each.used for each in places]
    assert not world.instances.running
    assert not budget.used
    return counts


def request(number: int) -> GrpcRequest:
    return GrpcRequest("/infer", (b"%d" % number,))


async def listen(
    frontend: Frontend[GrpcRequest, GrpcResponse],
    wires: list[GrpcRequest],
    limits: GrpcSessionLimits,
    reads: bool,
) -> int:
    """Send all messages at once, and read all replies, or leave late; return the number read."""

    async def messages() -> AsyncIterator[GrpcRequest]:
        for wire in wires:
            yield wire

    count = 0
    async with aclosing(frontend.session(messages(), limits)) as responses:
        async for _ in responses:
            count += 1
            if not reads:
                await elapse(LEAVES_S)
                break
    return count


@given(STREAMS)
def test_no_calls_wait_in_a_circle(streams: list[Stream]) -> None:
    """All calls end soon, of whatever features, and hold nothing in the end.

    Calls of one stream waited for each other's replies while they held their places.
    """
    counts = simulate(lambda: play(streams))
    expected = [
        sum(message.replies or 1 for message in stream.messages)
        for stream in streams
        if stream.reads
    ]
    assert expected == counts
