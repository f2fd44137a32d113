"""Batch: when requests go together, and what becomes of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gateway.ir.attempts import ATTEMPT, CallAttempt
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Need, Origin
from gateway.ir.context import Sequence as Place
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    NotFound,
    NotOneReply,
    Overloaded,
    QueueTimeout,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import Tensor, array_tensor, as_numpy, as_raw, raw_tensor
from gateway.policies.batch.policy import Batch
from gateway.policies.batch.queue import BatchRules
from gateway.service import Service
from gateway.telemetry.call_path import CALL_PATH, CallPath
from tests.fakes import FakeClock, FakeStream, ScriptedService, settle

M = ModelRef("m")
X = (TensorMetadata("x", Datatype.INT32, (-1, 1)),)
BATCHES = ModelMetadata(name="m", inputs=X, outputs=X, max_batch_size=8)
DELAY_S = 1 / 128


def ints(name: str, values: Sequence[int]) -> Tensor:
    array = array_tensor(name, np.array(values, np.int32).reshape(-1, 1))
    return raw_tensor(name, Datatype.INT32, array.shape or (), as_raw(array))


def ask(*values: int, deadline: float | None = None, **fields: Any) -> InferRequest:
    fields.setdefault("context", Context(deadline=deadline))
    return InferRequest(model=M, inputs=(ints("x", values),), id=f"id{values[0]}", **fields)


def values(message: InferRequest | InferResponse) -> list[int]:
    tensors = message.inputs if isinstance(message, InferRequest) else message.outputs
    found: list[int] = as_numpy(tensors[0]).reshape(-1).tolist()
    return found


def tenfold(call: InferRequest) -> InferResponse:
    outputs = (ints("y", [10 * value for value in values(call)]),)
    return InferResponse(model=M, outputs=outputs, id=call.id, parameters={"p": 1})


class Metered:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.waits: list[float] = []
        self.refusals = 0

    def sent(self, *, rows: int, waits_s: Sequence[float]) -> None:
        self.rows.append(rows)
        self.waits += waits_s

    def rejected(self) -> None:
        self.refusals += 1


class Bench:
    """A batch before a service that the test answers, on a clock that the test moves."""

    def __init__(
        self, *script: Any, metadata: Any = BATCHES, always: Any = None, **rules: Any
    ) -> None:
        self.clock = FakeClock()
        self.meter = Metered()
        self.target = ScriptedService(*script, always=always)
        self.metadata = ScriptedService(always=metadata)
        rules = {"max_delay_s": DELAY_S, "in_flight": 1, **rules}
        self.batch = Batch(
            self._service,
            BatchRules(**rules),
            meter=self.meter,
            clock=self.clock,
            call_later=self.clock.later,
        )

    async def _service(self, call: Any, /) -> Any:
        service = self.metadata if isinstance(call, ModelMetadataRequest) else self.target
        return await service(call)

    async def start(self, *calls: Any) -> list[asyncio.Task[Any]]:
        tasks = [asyncio.ensure_future(self.batch(call)) for call in calls]
        await settle()
        return tasks

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()

    @property
    def sent(self) -> list[list[int]]:
        """The values of each call at the target."""
        return [values(call) for call in self.target.calls]  # type: ignore[arg-type]  # inferences


async def outcomes(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """Return what each task gave: values, or the type of its error."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(one) if isinstance(one, BaseException) else values(one) for one in found]


# --- together ---


async def test_many_go_as_one_and_each_gets_its_own() -> None:
    """Requests that come within the delay are one call; rows and ids find their callers."""
    bench = Bench(always=tenfold)
    tasks = await bench.start(ask(1), ask(2, 3), ask(4))
    assert [] == bench.sent
    await bench.advance(DELAY_S)
    assert [[1, 2, 3, 4]] == bench.sent
    replies = await asyncio.gather(*tasks)
    assert [[10], [20, 30], [40]] == [values(reply) for reply in replies]
    assert ["id1", "id2", "id4"] == [reply.id for reply in replies]
    assert [{"p": 1}] * 3 == [reply.parameters for reply in replies]
    assert ([4], [DELAY_S] * 3) == (bench.meter.rows, bench.meter.waits)


async def test_a_full_batch_goes_at_once() -> None:
    """Nobody waits for a time when there is no more room."""
    bench = Bench(always=tenfold, max_batch_size=3)
    tasks = await bench.start(ask(1), ask(2), ask(3), ask(4))
    assert [[1, 2, 3]] == bench.sent
    await bench.advance(DELAY_S)
    assert [[1, 2, 3], [4]] == bench.sent
    assert [[10], [20], [30], [40]] == await outcomes(tasks)


async def test_who_does_not_fit_goes_with_the_next() -> None:
    """Requests are never divided, and nobody is overtaken."""
    bench = Bench(always=tenfold, max_batch_size=4)
    tasks = await bench.start(ask(1, 2), ask(3, 4, 5), ask(6))
    await bench.advance(DELAY_S)
    assert [[1, 2], [3, 4, 5, 6]] == bench.sent
    assert [[10, 20], [30, 40, 50], [60]] == await outcomes(tasks)


async def test_bytes_are_bounded() -> None:
    """A batch is full as well when its inputs have so many bytes."""
    bench = Bench(always=tenfold, max_bytes=8)
    tasks = await bench.start(ask(1), ask(2), ask(3), ask(4, 5, 6))
    assert [[1, 2], [4, 5, 6]] == sorted(bench.sent)
    await bench.advance(DELAY_S)
    assert [[10], [20], [30], [40, 50, 60]] == await outcomes(tasks)


async def test_preferred_sizes_go_at_once() -> None:
    """A run of requests that has a preferred number of rows waits for nobody."""
    bench = Bench(always=tenfold, preferred_sizes=(2, 4))
    tasks = await bench.start(ask(1))
    assert [] == bench.sent
    tasks += await bench.start(ask(2))
    assert [[1, 2]] == bench.sent
    tasks += await bench.start(ask(3), ask(4, 5))
    assert [[1, 2]] == bench.sent
    await bench.advance(DELAY_S)
    assert [[1, 2], [3, 4, 5]] == bench.sent
    assert [[10], [20], [30], [40, 50]] == await outcomes(tasks)


async def test_the_largest_preferred_size_is_taken() -> None:
    """Of what has gathered meanwhile a preferred number goes, and the rest waits on."""
    bench = Bench(preferred_sizes=(2, 4), max_batch_size=8)
    await bench.start(ask(1), ask(2))
    tasks = await bench.start(*map(ask, range(3, 8)))
    bench.target.waiting[0].set_result(tenfold(bench.target.calls[0]))  # type: ignore[arg-type]
    await settle()
    assert [[1, 2], [3, 4, 5, 6]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_requests_gather_while_the_target_is_busy() -> None:
    """No more calls than allowed are in hand; then all that waits goes, however long it waited."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(ask(1))
    tasks += await bench.start(ask(2), ask(3))
    await bench.advance(1.0)
    assert [[1]] == bench.sent
    bench.target.waiting[0].set_result(tenfold(ask(1)))
    await settle()
    assert [[1], [2, 3]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(ask(2, 3)))
    assert [[10], [20], [30]] == await outcomes(tasks)


async def test_several_calls_in_hand() -> None:
    """As many as allowed go side by side."""
    bench = Bench(max_delay_s=0.0, in_flight=2)
    tasks = [*await bench.start(ask(1)), *await bench.start(ask(2)), *await bench.start(ask(3))]
    assert [[1], [2]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_what_waited_longest_goes_first() -> None:
    """Groups that cannot be joined take turns by age."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(ask(1))
    for call in (ask(2), ask(3, priority=1), ask(4)):
        bench.clock.advance(0.001)
        tasks += await bench.start(call)
    for _ in range(3):
        bench.target.waiting[-1].set_result(tenfold(bench.target.calls[-1]))  # type: ignore[arg-type]
        await settle()
    assert [[1], [2, 4], [3]] == bench.sent
    assert [[10], [20], [30], [40]] == await outcomes(tasks)


async def test_one_alone_goes_as_it_came() -> None:
    """A batch of one is the caller's own call, its wire origin included."""
    bench = Bench(always=tenfold)
    call = ask(1, timeout_us=5)
    (task,) = await bench.start(call)
    await bench.advance(DELAY_S)
    assert call is bench.target.calls[0]
    assert "id1" == (await task).id


async def test_no_note_is_taken_for_another() -> None:
    """The joined call runs in a context of its own: what is noted there is nobody's."""
    seen: list[CallPath | None] = []

    def answer(call: InferRequest) -> InferResponse:
        seen.append(CALL_PATH.get())
        return tenfold(call)

    bench = Bench(always=answer, max_batch_size=2)
    CALL_PATH.set(CallPath())
    await outcomes(await bench.start(ask(1), ask(2)))
    assert [None] == seen


# --- alone ---


async def no_metadata(_call: object) -> ModelMetadata:
    raise NotFound("no metadata")


@pytest.mark.parametrize(
    "metadata",
    [
        ModelMetadata(name="m", inputs=X, outputs=X, max_batch_size=0),
        ModelMetadata(name="m", inputs=(TensorMetadata("x", Datatype.INT32, (1, 1)),)),
        no_metadata,
    ],
    ids=["does not batch", "fixed axis", "no metadata"],
)
async def test_models_that_do_not_batch(metadata: Any) -> None:
    """Where there is no batch axis, or nobody knows, each request goes as it came."""
    bench = Bench(always=tenfold, metadata=metadata)
    assert [[10], [20]] == await outcomes(await bench.start(ask(1), ask(2)))
    assert [[1], [2]] == bench.sent
    (question,) = bench.metadata.calls
    assert Need.BATCHING in question.context.needs


async def test_metadata_are_asked_again_after_a_while() -> None:
    """A model that could not tell may tell later."""
    bench = Bench(always=tenfold, metadata=no_metadata)
    await outcomes(await bench.start(ask(1)))
    bench.clock.advance(10)
    await outcomes(await bench.start(ask(1)))
    assert 2 == len(bench.metadata.calls)


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
async def test_a_model_that_is_loaded_again_is_asked_again(kind: Any) -> None:
    """Another model may take more rows, or none together."""
    bench = Bench(lambda _call: None, always=tenfold, max_delay_s=0.0)
    await bench.batch(kind(model=M))
    await outcomes(await bench.start(ask(1)))
    bench.target._script.append(lambda _call: None)
    await bench.batch(kind(model=M))
    await outcomes(await bench.start(ask(1)))
    assert 2 == len(bench.metadata.calls)


async def test_what_is_known_of_models_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients name versions; only so many are remembered."""
    monkeypatch.setattr("gateway.policies.metadata_cache._LIMIT", 2)
    bench = Bench(always=tenfold, metadata=no_metadata)
    for version in ("1", "2", "3", "1"):
        await bench.batch(ask(1).changed(model=ModelRef("m", version)))
    assert ["1", "2", "3", "1"] == [
        call.model.version for call in bench.metadata.calls if call.model
    ]


@pytest.mark.parametrize(
    ("configured", "declared", "expected"),
    [(None, 3, 3), (2, 3, 2), (4, 3, 3), (None, None, 64), (4, None, 4)],
)
async def test_rows_of_a_call(configured: int | None, declared: int | None, expected: int) -> None:
    """The smaller of what is configured and what the model takes; 64 where nobody says."""
    metadata = ModelMetadata(name="m", inputs=X, outputs=X, max_batch_size=declared)
    bench = Bench(always=tenfold, metadata=metadata, max_batch_size=configured)
    await outcomes(await bench.start(*[ask(1)] * expected))
    assert [expected] == bench.meter.rows


async def test_large_requests_go_alone() -> None:
    """One that fills a batch by itself waits for nobody, and takes nobody's turn."""
    bench = Bench(max_batch_size=3)
    tasks = await bench.start(ask(1, 2, 3), ask(4, 5, 6, 7))
    assert [[1, 2, 3], [4, 5, 6, 7]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_sequences_are_never_joined() -> None:
    """Requests of a sequence go as they come, and one by one."""
    bench = Bench(always=tenfold)
    sequence = Place(7)
    tasks = await bench.start(ask(1, sequence=sequence), ask(2, sequence=sequence))
    assert [[10], [20]] == await outcomes(tasks)
    assert 2 == len(bench.target.calls)


async def test_streams_and_questions_pass() -> None:
    """Everything that is no plain inference goes through."""
    stream = FakeStream([])
    bench = Bench(stream, True)
    assert stream is await bench.batch(StreamInferRequest(model=M, request=ask(1)))
    assert await bench.batch(ModelReadyRequest(model=M))
    assert BATCHES == await bench.batch(ModelMetadataRequest(model=M))


# --- deadlines ---


async def test_who_has_little_time_does_not_wait_long() -> None:
    """At most a quarter of the time that is left is spent on waiting for others."""
    bench = Bench(always=tenfold)
    tasks = await bench.start(ask(1), ask(2, deadline=1000.004))
    await bench.advance(0.001)
    assert [[1, 2]] == bench.sent
    assert [[10], [20]] == await outcomes(tasks)


async def test_who_is_late_leaves_the_others() -> None:
    """A deadline that passes while the target is busy ends that request alone."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(ask(1))
    tasks += await bench.start(ask(2, deadline=1000.5), ask(3), ask(4, deadline=1000.2))
    await bench.advance(0.6)
    assert [False, True, False, True] == [task.done() for task in tasks]
    bench.target.waiting[0].set_result(tenfold(ask(1)))
    await settle()
    assert [[1], [3]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(ask(3)))
    assert [[10], DeadlineExceeded, [30], DeadlineExceeded] == await outcomes(tasks)


async def test_a_queue_timeout_ends_what_waits() -> None:
    """It ends a request that waits for the target, and neither the batch that runs nor others."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(ask(1, timeout_us=5))
    tasks += await bench.start(
        ask(2, timeout_us=100_000), ask(3, deadline=1005.0, timeout_us=10**6)
    )
    await bench.advance(0.6)
    assert [False, True, False] == [task.done() for task in tasks]
    bench.target.waiting[0].set_result(tenfold(ask(1)))
    await settle()
    bench.target.waiting[1].set_result(tenfold(ask(3)))
    assert [[10], QueueTimeout, [30]] == await outcomes(tasks)
    assert [5, 10**6] == [
        call.timeout_us for call in bench.target.calls if isinstance(call, InferRequest)
    ]


async def test_who_comes_too_late_is_not_sent() -> None:
    """A request whose deadline has passed before it came asks nothing of the target."""
    bench = Bench(always=tenfold)
    (task,) = await bench.start(ask(1, deadline=999.0))
    with pytest.raises(DeadlineExceeded, match="waited in the batch queue of model 'm'"):
        await task
    assert [] == bench.sent


async def test_the_joined_call_has_the_longest_time() -> None:
    """One caller's short time does not end the call of another."""
    bench = Bench(always=tenfold, max_batch_size=2)
    await outcomes(await bench.start(ask(1, deadline=1001.0), ask(2, deadline=1005.0)))
    assert 1005.0 == bench.target.calls[0].context.deadline


# --- failures ---


@pytest.mark.parametrize("error", [UpstreamError, Unavailable, Overloaded, NotFound])
async def test_a_failure_is_everybodys(error: type[GatewayError]) -> None:
    """What may have run is not sent again: all who were part of it are told, each by its own."""
    bench = Bench(error("no", model=M, limit="l"), always=tenfold, max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [error, error] == [type(one) for one in found]
    assert found[0] is not found[1]
    assert [("no", M, "l")] * 2 == [
        (one.message, one.model, one.limit) for one in found if isinstance(one, GatewayError)
    ]
    assert 1 == len(bench.target.calls)


async def test_a_batch_avoids_what_its_callers_have_tried() -> None:
    """A retry goes to another endpoint, also as a part of a batch."""
    found: list[CallAttempt | None] = []

    def answer(call: InferRequest) -> InferResponse:
        found.append(ATTEMPT.get())
        return tenfold(call)

    bench = Bench(always=answer, max_batch_size=2)

    async def retry(value: int, *avoid: str) -> None:
        ATTEMPT.set(CallAttempt(avoid))
        await bench.batch(ask(value))

    await asyncio.gather(retry(1, "a"), retry(2, "a", "b"))
    await outcomes(await bench.start(ask(3), ask(4)))
    assert [("a", "b"), None] == [each and each.avoid for each in found]


def picky(error: type[GatewayError], *wrong: int) -> Any:
    """Return a target that refuses calls in which one of the *wrong* values is."""

    def answer(call: InferRequest) -> InferResponse:
        if set(wrong) & set(values(call)):
            raise error(f"refused {values(call)}")
        return tenfold(call)

    return answer


@pytest.mark.parametrize("error", [InvalidRequest, TooLarge, Unsupported])
async def test_a_refused_request_fails_alone(error: type[GatewayError]) -> None:
    """When the target refuses the whole, halves are asked, and the wrong one has its own error."""
    bench = Bench(always=picky(error, 3), max_batch_size=4)
    tasks = await bench.start(*map(ask, range(1, 5)))
    assert [[10], [20], error, [40]] == await outcomes(tasks)
    assert [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]] == bench.sent
    assert 2 == bench.meter.refusals
    with pytest.raises(error, match=r"refused \[3\]"):
        await tasks[2]


@pytest.mark.parametrize(
    "error", [NotOneReply("two"), Unsupported("late", origin=Origin("c", b"wire"))]
)
async def test_what_is_not_supported_may_be_noticed_late(error: GatewayError) -> None:
    """A model that gave two answers has run, and so may one whose server says that it cannot."""
    bench = Bench(error, always=tenfold, max_batch_size=2)
    assert [type(error)] * 2 == await outcomes(await bench.start(ask(1), ask(2)))
    assert (1, 0) == (len(bench.target.calls), bench.meter.refusals)


async def test_halves_do_not_take_more_turns() -> None:
    """While a refused batch is asked apart, others wait as they did before."""
    bench = Bench(InvalidRequest("no"), max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2), ask(3), ask(4))
    assert [[1, 2], [1]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_data_that_is_not_what_it_says_fails_alone() -> None:
    """A tensor whose bytes do not fit its shape never moves the rows of others."""
    bench = Bench(always=picky(InvalidRequest), max_batch_size=2)
    whole = ask(1)
    broken = whole.changed(inputs=(Tensor("x", Datatype.INT32, (1, 1), ints("x", [1, 2]).data),))
    await outcomes(await bench.start(broken, whole))
    assert [broken, whole] == bench.target.calls


async def test_an_answer_without_batch_axis_is_an_error() -> None:
    """Rows that cannot be told apart are given to nobody, and nothing is sent again."""
    bench = Bench(lambda _call: tenfold(ask(1)), max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2))
    assert [UpstreamProtocolError] * 2 == await outcomes(tasks)
    assert 1 == len(bench.target.calls)


async def test_bugs_are_told_to_all() -> None:
    """What is no error of ours reaches each caller's frontend; alone or together."""
    bench = Bench(ValueError("bug"), ValueError("bug"), max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2), ask(3))
    await bench.advance(DELAY_S)
    assert [ValueError] * 3 == await outcomes(tasks)


async def test_a_target_that_gives_up() -> None:
    """A call that is cancelled from within ends with an error, not with silence."""
    bench = Bench(max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2))
    bench.target.waiting[0].cancel()
    assert [Cancelled] * 2 == await outcomes(tasks)


# --- leaving ---


async def test_who_leaves_while_waiting_is_forgotten() -> None:
    """Its rows are not sent."""
    bench = Bench(always=tenfold)
    tasks = await bench.start(ask(1), ask(2), ask(3))
    tasks[1].cancel()
    await settle()
    await bench.advance(DELAY_S)
    assert [[1, 3]] == bench.sent
    assert [[10], asyncio.CancelledError, [30]] == await outcomes(tasks)


async def test_the_last_who_leaves_takes_the_group_along() -> None:
    """An empty group is no call, and the next one starts afresh."""
    bench = Bench(always=tenfold)
    (task,) = await bench.start(ask(1))
    task.cancel()
    await settle()
    bench.clock.advance(DELAY_S / 2)
    (task,) = await bench.start(ask(2))
    await bench.advance(DELAY_S / 2)
    assert [] == bench.sent
    await bench.advance(DELAY_S / 2)
    assert [[20]] == await outcomes([task])


async def test_who_leaves_later_does_not_end_the_call() -> None:
    """The others get their answers."""
    bench = Bench(max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2))
    tasks[0].cancel()
    await settle()
    assert 0 == bench.target.cancelled
    bench.target.waiting[0].set_result(tenfold(ask(1, 2)))
    assert [asyncio.CancelledError, [20]] == await outcomes(tasks)


async def test_when_all_have_left_the_call_is_cancelled() -> None:
    """At once, and its place is free for the next."""
    bench = Bench(max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2), ask(3), ask(4))
    for task in tasks[:2]:
        task.cancel()
    await settle()
    assert 1 == bench.target.cancelled
    assert [[1, 2], [3, 4]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(ask(3, 4)))
    assert [[30], [40]] == await outcomes(tasks[2:])


async def test_leaving_while_halves_are_asked() -> None:
    """The half that nobody waits for is cancelled, the other one is asked."""
    bench = Bench(InvalidRequest("no"), max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2))
    tasks[0].cancel()
    await settle()
    assert 1 == bench.target.cancelled
    assert [[1, 2], [1], [2]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(ask(2)))
    assert [asyncio.CancelledError, [20]] == await outcomes(tasks)


@pytest.mark.parametrize("at_once", [True, False])
async def test_all_leave_while_halves_are_asked(at_once: bool) -> None:
    """Nothing more is sent, and the place is given back."""
    bench = Bench(InvalidRequest("no"), max_batch_size=2)
    tasks = await bench.start(ask(1), ask(2))
    for task in reversed(tasks):
        task.cancel()
        if not at_once:
            await settle()
    await settle()
    assert [[1, 2], [1]] == bench.sent
    (task,) = await bench.start(ask(3))
    await bench.advance(DELAY_S)
    assert [3] == bench.sent[-1]
    task.cancel()


async def test_on_the_loops_own_clock() -> None:
    """Without a clock of the test's, the loop's timers ring."""
    service: Service = Bench(always=tenfold)._service
    batch = Batch(service, BatchRules(max_delay_s=0.001))
    tasks = [asyncio.ensure_future(batch(ask(value))) for value in (1, 2)]
    assert [[10], [20]] == await outcomes(tasks)
