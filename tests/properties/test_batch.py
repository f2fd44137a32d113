"""Batch and Cache: callers arrive, leave, fail and expire; each gets exactly its own reply.

A test moves the clock, resolves the target's calls in any order, and lets callers leave.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import DeadlineExceeded, InvalidRequest, UpstreamError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.policies.batch.policy import Batch
from gateway.policies.batch.queue import BatchRules
from gateway.policies.cache import Cache
from tests.fakes import FakeClock, settle
from tests.properties.conftest import Run

M = ModelRef("m")
MOST, MOST_BYTES, IN_FLIGHT = 6, 24, 2
METADATA = ModelMetadata(
    name="m",
    inputs=(TensorMetadata("x", Datatype.INT32, (-1, 1)),),
    outputs=(TensorMetadata("y", Datatype.INT32, (-1, 1)),),
    max_batch_size=MOST,
)


# --- what happens ---


@dataclass(frozen=True)
class Arrival:
    """A caller arrives.

    Attributes:
        kind: Requests of different kinds cannot be batched.
        left_s: Time until its deadline; None for none.
        wrong: The target rejects calls that contain it.
    """

    rows: int
    kind: int
    left_s: float | None
    wrong: bool
    text: bool


@dataclass(frozen=True)
class Crowd:
    """Callers arrive at the same time."""

    arrivals: list[Arrival]


@dataclass(frozen=True)
class Leave:
    """A caller leaves: the n-th of those that wait."""

    index: int


@dataclass(frozen=True)
class Resolve:
    """The target resolves the n-th of its pending calls, or fails it, perhaps after running it."""

    index: int
    fails: bool


@dataclass(frozen=True)
class Pass:
    """Time passes."""

    seconds: float


Step = Crowd | Leave | Resolve | Pass

TIMES = st.sampled_from([0.0, 0.001, 0.004, 0.02, 0.1])
ARRIVALS = st.builds(
    Arrival,
    rows=st.sampled_from([1, 2, 1, 3, 1, 2, 0, MOST, MOST + 1]),
    kind=st.sampled_from([0, 0, 0, 1]),
    left_s=st.sampled_from([None] * 8 + [0.1, 0.02, 0.004, 0.0]),
    wrong=st.sampled_from([False] * 7 + [True]),
    text=st.sampled_from([False, False, False, True]),
)
RESOLVES = st.builds(Resolve, st.integers(0, 9), st.sampled_from([False, False, True]))
OTHERS = st.one_of(
    RESOLVES,
    RESOLVES,
    st.builds(Pass, TIMES),
    st.builds(Leave, st.integers(0, 9)),
)
CROWDS = st.builds(Crowd, st.lists(ARRIVALS, min_size=2, max_size=8))
STEPS = st.lists(st.one_of(CROWDS, OTHERS), min_size=5, max_size=25)
RULES = st.builds(
    BatchRules,
    max_delay_s=st.sampled_from([0.0, 0.01]),
    max_bytes=st.sampled_from([MOST_BYTES // 2, MOST_BYTES, 1 << 20]),
    preferred_sizes=st.sampled_from([(), (2,), (2, 4)]),
    in_flight=st.integers(1, IN_FLIGHT),
)


# --- callers and target ---


@dataclass(eq=False)
class Caller:
    """One request with values of its own, so that every row can be distinguished from others."""

    arrival: Arrival
    values: list[int]
    deadline: float | None
    task: asyncio.Task[InferResponse] = field(init=False)
    has_left: bool = False

    def call(self) -> InferRequest:
        return InferRequest(
            model=M,
            inputs=(_tensor("x", self.values, text=self.arrival.text),),
            id=f"id{self.values[0]}" if self.values else "none",
            parameters={"kind": self.arrival.kind},
            context=Context(deadline=self.deadline),
        )


def _tensor(name: str, values: list[int], *, text: bool) -> Tensor:
    if text:
        # Of many lengths: rows are found by their lengths.
        return items_tensor(name, (len(values), 1), [b"%d" % value * 3 for value in values])
    return array_tensor(name, np.array(values, np.int32).reshape(-1, 1))


def _values(tensor: Tensor) -> list[int]:
    if tensor.datatype is Datatype.BYTES:
        texts = [bytes(item) for item in as_items(tensor)]
        return [int(text[: len(text) // 3]) for text in texts]
    found: list[int] = as_numpy(tensor).reshape(-1).tolist()
    return found


Entry = tuple[InferRequest, asyncio.Future[InferResponse]]
"""A pending call and the future of its reply."""


@dataclass(eq=False)
class World:
    """Callers before a layer before a target, and the calls that the target received.

    Attributes:
        ran: Values of calls that the target did not reject.
        failed: Values of calls that failed.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    callers: list[Caller] = field(default_factory=list)
    waiting: list[Entry] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    layer: Any = None

    async def target(self, call: Any, /) -> Any:
        """Wait until the test resolves the call."""
        if isinstance(call, ModelMetadataRequest):
            return METADATA
        self.seen.append(_values(call.inputs[0]))
        reply: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        entry = (call, reply)
        self.waiting.append(entry)
        try:
            return await reply
        finally:
            if entry in self.waiting:
                self.waiting.remove(entry)

    def pending_batches(self, rules: BatchRules) -> int:
        """Return the number of pending calls at the target that come from the layer."""
        inputs = [call.inputs[0] for call, _ in self.waiting]
        return sum(
            tensor.shape != (0, 1)
            and len(_values(tensor)) < MOST
            and tensor.nbytes <= rules.max_bytes
            for tensor in inputs
        )

    def is_wanted(self, entry: Entry) -> bool:
        """Return whether a caller still waits for a pending call."""
        values = set(_values(entry[0].inputs[0]))
        owners = [one for one in self.callers if values & set(one.values)]
        return not owners or not all(one.task.done() for one in owners)

    def wrong(self) -> set[int]:
        return {value for one in self.callers if one.arrival.wrong for value in one.values}

    async def apply(self, step: Step) -> None:
        """Apply one step."""
        if isinstance(step, Crowd):
            for arrival in step.arrivals:
                self.arrive(arrival)
        elif isinstance(step, Pass):
            self.clock.advance(step.seconds)
        elif isinstance(step, Resolve) and self.waiting:
            self.resolve(*self.waiting.pop(step.index % len(self.waiting)), fails=step.fails)
        elif isinstance(step, Leave):
            staying = [one for one in self.callers if not one.task.done()]
            if staying:
                leaver = staying[step.index % len(staying)]
                leaver.has_left = True
                leaver.task.cancel()
        await settle()

    def arrive(self, step: Arrival) -> None:
        first = sum(len(one.values) for one in self.callers) + 1
        deadline = None if step.left_s is None else self.clock.now + step.left_s
        caller = Caller(step, list(range(first, first + step.rows)), deadline)
        self.callers.append(caller)
        caller.task = asyncio.ensure_future(self.layer(caller.call()))

    def resolve(
        self, call: InferRequest, reply: asyncio.Future[InferResponse], *, fails: bool
    ) -> None:
        values = _values(call.inputs[0])
        if self.wrong() & set(values):
            reply.set_exception(InvalidRequest("wrong"))
            return
        self.ran += values
        if fails:
            self.failed |= set(values)
            reply.set_exception(UpstreamError("failed"))
            return
        text = call.inputs[0].datatype is Datatype.BYTES
        output = _tensor("y", [10 * value for value in values], text=text)
        reply.set_result(InferResponse(model=M, outputs=(output,), id=call.id))

    async def finish(self) -> None:
        """Resolve all calls until every caller has its result."""
        for _ in range(1000):
            await settle()
            if all(one.task.done() for one in self.callers):
                break
            self.clock.advance(0.01)
            await settle()
            while self.waiting:
                self.resolve(*self.waiting.pop(0), fails=False)
        assert [] == [one.arrival for one in self.callers if not one.task.done()]

    def check_caller(self, caller: Caller) -> None:
        """Check that the caller got its own rows, or an error of its own."""
        if caller.task.cancelled():
            assert caller.has_left
            return
        error = caller.task.exception()
        if error is None:
            reply = caller.task.result()
            assert [10 * value for value in caller.values] == _values(reply.outputs[0])
            assert (len(caller.values), 1) == reply.outputs[0].shape
            assert caller.call().id == reply.id
        elif isinstance(error, InvalidRequest):
            assert caller.arrival.wrong
        elif isinstance(error, DeadlineExceeded):
            assert caller.deadline is not None
            assert caller.deadline <= self.clock.now
            assert not set(caller.values) & set(self.ran)
        else:
            assert isinstance(error, UpstreamError)
            assert set(caller.values) <= self.failed or not caller.values


@given(steps=STEPS, rules=RULES)
def test_each_caller_gets_its_own_result_once(
    run: Run, steps: list[Step], rules: BatchRules
) -> None:
    """Results are neither lost nor mixed, and no request that may have run is sent again."""

    async def scenario() -> None:
        world = World()
        world.layer = Batch(world.target, rules, clock=world.clock, call_later=world.clock.later)
        for step in steps:
            await world.apply(step)
            assert world.pending_batches(rules) <= rules.in_flight
            assert all(map(world.is_wanted, world.waiting))
        await world.finish()
        for caller in world.callers:
            world.check_caller(caller)
        assert len(set(world.ran)) == len(world.ran)
        _check_calls(world, rules)

    run(scenario())


def _check_calls(world: World, rules: BatchRules) -> None:
    owner = {value: one for one in world.callers for value in one.values}
    for values in world.seen:
        members = list(dict.fromkeys(owner[value] for value in values))
        # Whole requests, in the order they came, of one kind and form.
        assert values == [value for one in members for value in one.values]
        assert len({(one.arrival.kind, one.arrival.text) for one in members}) <= 1
        if len(members) > 1:
            assert len(values) <= MOST
            assert members == sorted(members, key=world.callers.index)
            sizes = [one.call().inputs[0].nbytes for one in members]
            assert sum(sizes) <= rules.max_bytes


@given(steps=STEPS, rules=RULES)
def test_all_slots_are_free_after_any_history(
    run: Run, steps: list[Step], rules: BatchRules
) -> None:
    """Later callers are batched after the delay, and no queue or task remains."""

    async def scenario() -> None:
        world = World()
        layer = Batch(world.target, rules, clock=world.clock, call_later=world.clock.later)
        world.layer = layer
        for step in steps:
            await world.apply(step)
        await world.finish()
        seen = len(world.seen)
        for kind in range(rules.in_flight):
            world.arrive(Arrival(1, kind, None, False, False))
        await settle()
        world.clock.advance(rules.max_delay_s)
        await settle()
        assert rules.in_flight == len(world.waiting) == len(world.seen) - seen
        await world.finish()
        for caller in world.callers:
            world.check_caller(caller)
        assert ({}, set(), rules.in_flight) == (layer._queues, layer._tasks, layer._free_slots)

    run(scenario())


EQUAL_ARRIVALS = st.builds(
    Arrival,
    rows=st.just(1),
    kind=st.integers(0, 2),
    left_s=st.none(),
    wrong=st.just(False),
    text=st.just(False),
)
CACHE_STEPS = st.lists(
    st.builds(Crowd, st.lists(EQUAL_ARRIVALS, min_size=1, max_size=4)) | OTHERS,
    min_size=5,
    max_size=25,
)


@given(steps=CACHE_STEPS, max_bytes=st.sampled_from([0, 1028, 2056, 1 << 20]))
def test_cached_replies_are_those_of_equal_requests(
    run: Run, steps: list[Step], max_bytes: int
) -> None:
    """Equal requests share calls and replies; different ones never do."""

    async def scenario() -> None:
        world = World()
        cache = Cache(world.target, max_bytes=max_bytes, max_age_s=0.05, clock=world.clock)

        async def layer(call: InferRequest) -> InferResponse:
            # The value is the key: callers of one kind send equal requests.
            values = [100 + int(call.parameters["kind"])]
            inputs = (_tensor("x", values, text=False),)
            return await cache(call.changed(inputs=inputs, parameters={}))

        world.layer = layer
        for step in steps:
            await world.apply(step)
            values_in_flight = [_values(call.inputs[0])[0] for call, _ in world.waiting]
            assert len(set(values_in_flight)) == len(values_in_flight)
            assert cache.used_bytes <= max_bytes
        await world.finish()
        for caller in world.callers:
            if caller.task.cancelled():
                assert caller.has_left
                continue
            error = caller.task.exception()
            value = 100 + caller.arrival.kind
            if error is None:
                reply = caller.task.result()
                assert ([10 * value], caller.call().id) == (_values(reply.outputs[0]), reply.id)
            else:
                assert isinstance(error, UpstreamError)
                assert value in world.failed

    run(scenario())
