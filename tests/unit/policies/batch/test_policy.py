"""Batch: when requests are merged, and how each of them ends."""

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
from gateway.ir.context import CallSequence, Client, Context, ModelRef, Need, Origin
from gateway.ir.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    NotFound,
    NotOneReply,
    NotSent,
    Overloaded,
    QueueTimeout,
    TooLarge,
    Unavailable,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.identity import Identity
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy, as_raw, raw_tensor
from gateway.policies.access.apart import apart_by
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


def request(*values: int, deadline: float | None = None, **fields: Any) -> InferRequest:
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
    """Records the reports of the batch."""

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
    """A batch above a service that the test controls, on a clock that the test moves."""

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
    """Return the result of each task: its values, or the type of its error."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(one) if isinstance(one, BaseException) else values(one) for one in found]


# --- merged requests ---


async def test_requests_merge_and_each_caller_gets_its_rows() -> None:
    """Requests within the delay become one call; each caller gets its own rows and id."""
    bench = Bench(always=tenfold)
    tasks = await bench.start(request(1), request(2, 3), request(4))
    assert [] == bench.sent
    await bench.advance(DELAY_S)
    assert [[1, 2, 3, 4]] == bench.sent
    replies = await asyncio.gather(*tasks)
    assert [[10], [20, 30], [40]] == [values(reply) for reply in replies]
    assert ["id1", "id2", "id4"] == [reply.id for reply in replies]
    assert [{"p": 1}] * 3 == [reply.parameters for reply in replies]
    assert ([4], [DELAY_S] * 3) == (bench.meter.rows, bench.meter.waits)


@pytest.mark.parametrize(
    ("by", "expected"),
    [("none", [[1, 2, 3]]), ("group", [[1, 3], [2]]), ("client", [[1], [2], [3]])],
)
async def test_requests_of_clients_are_separate(by: str, expected: list[list[int]]) -> None:
    """With `apart` only requests of one client, or of equal groups, become one call."""
    identities = (
        Identity("one", frozenset({"a"})),
        Identity("two", frozenset({"b"})),
        Identity("three", frozenset({"a"})),
    )
    bench = Bench(always=tenfold, apart=apart_by(by))
    requests = [
        request(number, context=Context(client=Client(identity=identity)))
        for number, identity in enumerate(identities, start=1)
    ]
    tasks = await bench.start(*requests)
    for _ in expected:  # one call at a time
        await bench.advance(DELAY_S)
    assert expected == sorted(bench.sent)
    assert [[10], [20], [30]] == await outcomes(tasks)


async def test_full_batch_is_sent_at_once() -> None:
    """A batch without room for more rows does not wait for its delay."""
    bench = Bench(always=tenfold, max_batch_size=3)
    tasks = await bench.start(request(1), request(2), request(3), request(4))
    assert [[1, 2, 3]] == bench.sent
    await bench.advance(DELAY_S)
    assert [[1, 2, 3], [4]] == bench.sent
    assert [[10], [20], [30], [40]] == await outcomes(tasks)


async def test_request_that_does_not_fit_waits_for_the_next_batch() -> None:
    """Requests are never split, and none overtakes another."""
    bench = Bench(always=tenfold, max_batch_size=4)
    tasks = await bench.start(request(1, 2), request(3, 4, 5), request(6))
    await bench.advance(DELAY_S)
    assert [[1, 2], [3, 4, 5, 6]] == bench.sent
    assert [[10, 20], [30, 40, 50], [60]] == await outcomes(tasks)


async def test_batch_size_in_bytes_is_limited() -> None:
    """A batch is also full when its inputs reach the byte limit."""
    bench = Bench(always=tenfold, max_bytes=8)
    tasks = await bench.start(request(1), request(2), request(3), request(4, 5, 6))
    assert [[1, 2], [4, 5, 6]] == sorted(bench.sent)
    await bench.advance(DELAY_S)
    assert [[10], [20], [30], [40, 50, 60]] == await outcomes(tasks)


async def test_batch_of_preferred_size_is_sent_at_once() -> None:
    """A batch with a preferred number of rows does not wait for its delay."""
    bench = Bench(always=tenfold, preferred_sizes=(2, 4))
    tasks = await bench.start(request(1))
    assert [] == bench.sent
    tasks += await bench.start(request(2))
    assert [[1, 2]] == bench.sent
    tasks += await bench.start(request(3), request(4, 5))
    assert [[1, 2]] == bench.sent
    await bench.advance(DELAY_S)
    assert [[1, 2], [3, 4, 5]] == bench.sent
    assert [[10], [20], [30], [40, 50]] == await outcomes(tasks)


async def test_largest_preferred_size_is_sent() -> None:
    """Of the waiting requests, the largest preferred number is sent and the rest wait."""
    bench = Bench(preferred_sizes=(2, 4), max_batch_size=8)
    await bench.start(request(1), request(2))
    tasks = await bench.start(*map(request, range(3, 8)))
    bench.target.waiting[0].set_result(tenfold(bench.target.calls[0]))  # type: ignore[arg-type]
    await settle()
    assert [[1, 2], [3, 4, 5, 6]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_requests_queue_while_the_target_is_busy() -> None:
    """At most `in_flight` calls run; then all waiting requests are sent as one call."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(request(1))
    tasks += await bench.start(request(2), request(3))
    await bench.advance(1.0)
    assert [[1]] == bench.sent
    bench.target.waiting[0].set_result(tenfold(request(1)))
    await settle()
    assert [[1], [2, 3]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(request(2, 3)))
    assert [[10], [20], [30]] == await outcomes(tasks)


async def test_several_calls_run_concurrently() -> None:
    """Up to `in_flight` calls run at the same time."""
    bench = Bench(max_delay_s=0.0, in_flight=2)
    tasks = [
        *await bench.start(request(1)),
        *await bench.start(request(2)),
        *await bench.start(request(3)),
    ]
    assert [[1], [2]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_longest_waiting_group_is_sent_first() -> None:
    """Groups that cannot be merged are sent by age."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(request(1))
    for call in (request(2), request(3, priority=1), request(4)):
        bench.clock.advance(0.001)
        tasks += await bench.start(call)
    for _ in range(3):
        bench.target.waiting[-1].set_result(tenfold(bench.target.calls[-1]))  # type: ignore[arg-type]
        await settle()
    assert [[1], [2, 4], [3]] == bench.sent
    assert [[10], [20], [30], [40]] == await outcomes(tasks)


async def test_batch_of_one_is_sent_unchanged() -> None:
    """A batch of one request is the caller's own call, wire origin included."""
    bench = Bench(always=tenfold)
    call = request(1, timeout_us=5)
    (task,) = await bench.start(call)
    await bench.advance(DELAY_S)
    assert call is bench.target.calls[0]
    assert "id1" == (await task).id


async def test_merged_call_has_no_call_path_of_a_caller() -> None:
    """The merged call runs in a context of its own."""
    seen: list[CallPath | None] = []

    def respond(call: InferRequest) -> InferResponse:
        seen.append(CALL_PATH.get())
        return tenfold(call)

    bench = Bench(always=respond, max_batch_size=2)
    CALL_PATH.set(CallPath())
    await outcomes(await bench.start(request(1), request(2)))
    assert [None] == seen


# --- requests that are not merged ---


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
async def test_models_without_batching_get_single_requests(metadata: Any) -> None:
    """Without a known batch axis, each request is sent on its own."""
    bench = Bench(always=tenfold, metadata=metadata)
    assert [[10], [20]] == await outcomes(await bench.start(request(1), request(2)))
    assert [[1], [2]] == bench.sent
    (metadata_call,) = bench.metadata.calls
    assert Need.BATCHING in metadata_call.context.needs


async def test_unavailable_metadata_are_fetched_again_later() -> None:
    """Metadata that were unavailable are fetched again after ten seconds."""
    bench = Bench(always=tenfold, metadata=no_metadata)
    await outcomes(await bench.start(request(1)))
    bench.clock.advance(10)
    await outcomes(await bench.start(request(1)))
    assert 2 == len(bench.metadata.calls)


@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
async def test_load_or_unload_invalidates_the_metadata(kind: Any) -> None:
    """After a load or unload the metadata are fetched again."""
    bench = Bench(lambda _call: None, always=tenfold, max_delay_s=0.0)
    await bench.batch(kind(model=M))
    await outcomes(await bench.start(request(1)))
    bench.target._script.append(lambda _call: None)
    await bench.batch(kind(model=M))
    await outcomes(await bench.start(request(1)))
    assert 2 == len(bench.metadata.calls)


async def test_number_of_cached_models_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose versions, so the number of cached entries is limited."""
    monkeypatch.setattr("gateway.model_info.metadata_cache._LIMIT", 2)
    bench = Bench(always=tenfold, metadata=no_metadata)
    for version in ("1", "2", "3", "1"):
        await bench.batch(request(1).changed(model=ModelRef("m", version)))
    assert ["1", "2", "3", "1"] == [
        call.model.version for call in bench.metadata.calls if call.model
    ]


@pytest.mark.parametrize(
    ("configured", "declared", "expected"),
    [(None, 3, 3), (2, 3, 2), (4, 3, 3), (None, None, 64), (4, None, 4)],
)
async def test_batch_size_limit_is_the_smaller_of_both(
    configured: int | None, declared: int | None, expected: int
) -> None:
    """The smaller of the configured and the declared maximum applies; the default is 64."""
    metadata = ModelMetadata(name="m", inputs=X, outputs=X, max_batch_size=declared)
    bench = Bench(always=tenfold, metadata=metadata, max_batch_size=configured)
    await outcomes(await bench.start(*[request(1)] * expected))
    assert [expected] == bench.meter.rows


async def test_request_that_fills_a_batch_is_sent_at_once() -> None:
    """A request with enough rows for a batch is sent at once, regardless of `in_flight`."""
    bench = Bench(max_batch_size=3)
    tasks = await bench.start(request(1, 2, 3), request(4, 5, 6, 7))
    assert [[1, 2, 3], [4, 5, 6, 7]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_sequence_requests_are_never_merged() -> None:
    """Each request of a sequence is sent on its own."""
    bench = Bench(always=tenfold)
    sequence = CallSequence(7)
    tasks = await bench.start(request(1, sequence=sequence), request(2, sequence=sequence))
    assert [[10], [20]] == await outcomes(tasks)
    assert 2 == len(bench.target.calls)


async def test_streams_and_other_calls_pass_through() -> None:
    """Calls other than unary inferences are passed to the target."""
    stream = FakeStream([])
    bench = Bench(stream, True)
    assert stream is await bench.batch(StreamInferRequest(model=M, request=request(1)))
    assert await bench.batch(ModelReadyRequest(model=M))
    assert BATCHES == await bench.batch(ModelMetadataRequest(model=M))


# --- deadlines ---


async def test_delay_is_at_most_a_quarter_of_the_remaining_time() -> None:
    """A deadline shortens the time that a request waits for others."""
    bench = Bench(always=tenfold)
    tasks = await bench.start(request(1), request(2, deadline=1000.004))
    await bench.advance(0.001)
    assert [[1, 2]] == bench.sent
    assert [[10], [20]] == await outcomes(tasks)


async def test_expired_deadline_ends_only_its_request() -> None:
    """A deadline that expires while the target is busy ends that request only."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(request(1))
    tasks += await bench.start(request(2, deadline=1000.5), request(3), request(4, deadline=1000.2))
    await bench.advance(0.6)
    assert [False, True, False, True] == [task.done() for task in tasks]
    bench.target.waiting[0].set_result(tenfold(request(1)))
    await settle()
    assert [[1], [3]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(request(3)))
    assert [[10], DeadlineExceeded, [30], DeadlineExceeded] == await outcomes(tasks)


async def test_queue_timeout_ends_only_its_waiting_request() -> None:
    """A queue timeout ends neither the running batch nor other requests."""
    bench = Bench(max_delay_s=0.0)
    tasks = await bench.start(request(1, timeout_us=5))
    tasks += await bench.start(
        request(2, timeout_us=100_000), request(3, deadline=1005.0, timeout_us=10**6)
    )
    await bench.advance(0.6)
    assert [False, True, False] == [task.done() for task in tasks]
    bench.target.waiting[0].set_result(tenfold(request(1)))
    await settle()
    bench.target.waiting[1].set_result(tenfold(request(3)))
    assert [[10], QueueTimeout, [30]] == await outcomes(tasks)
    assert [5, 10**6] == [
        call.timeout_us for call in bench.target.calls if isinstance(call, InferRequest)
    ]


async def test_request_past_its_deadline_is_not_sent() -> None:
    """A request whose deadline has already expired does not reach the target."""
    bench = Bench(always=tenfold)
    (task,) = await bench.start(request(1, deadline=999.0))
    with pytest.raises(DeadlineExceeded, match="waited in the batch queue of model 'm'"):
        await task
    assert [] == bench.sent


async def test_merged_call_has_the_latest_deadline() -> None:
    """A short deadline of one caller does not end the call of another."""
    bench = Bench(always=tenfold, max_batch_size=2)
    await outcomes(await bench.start(request(1, deadline=1001.0), request(2, deadline=1005.0)))
    assert 1005.0 == bench.target.calls[0].context.deadline


# --- failures ---


@pytest.mark.parametrize("error", [UpstreamError, Unavailable, Overloaded, NotFound])
async def test_failure_fails_every_request_of_the_batch(error: type[GatewayError]) -> None:
    """The batch is not sent again, and each caller gets an error object of its own."""
    bench = Bench(error("no", model=M, limit="l"), always=tenfold, max_batch_size=2)
    tasks = await bench.start(request(1), request(2))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [error, error] == [type(one) for one in found]
    assert found[0] is not found[1]
    assert [("no", M, "l")] * 2 == [
        (one.message, one.model, one.limit) for one in found if isinstance(one, GatewayError)
    ]
    assert 1 == len(bench.target.calls)


async def test_batch_avoids_endpoints_that_its_callers_tried() -> None:
    """The merged call avoids every endpoint that one of its callers avoids."""
    found: list[CallAttempt | None] = []

    def respond(call: InferRequest) -> InferResponse:
        found.append(ATTEMPT.get())
        return tenfold(call)

    bench = Bench(always=respond, max_batch_size=2)

    async def retry(value: int, *avoid: str) -> None:
        ATTEMPT.set(CallAttempt(avoid))
        await bench.batch(request(value))

    await asyncio.gather(retry(1, "a"), retry(2, "a", "b"))
    await outcomes(await bench.start(request(3), request(4)))
    assert [("a", "b"), None] == [each and each.avoid for each in found]


def picky(error: type[GatewayError], *wrong: int) -> Any:
    """Return a target that rejects calls with one of the *wrong* values."""

    def respond(call: InferRequest) -> InferResponse:
        if set(wrong) & set(values(call)):
            raise error(f"refused {values(call)}")
        return tenfold(call)

    return respond


@pytest.mark.parametrize("error", [InvalidRequest, TooLarge, Unsupported])
async def test_rejected_batch_is_bisected(error: type[GatewayError]) -> None:
    """After a rejection each half is sent again, and only the invalid request fails."""
    bench = Bench(always=picky(error, 3), max_batch_size=4)
    tasks = await bench.start(*map(request, range(1, 5)))
    assert [[10], [20], error, [40]] == await outcomes(tasks)
    assert [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]] == bench.sent
    assert 2 == bench.meter.refusals
    with pytest.raises(error, match=r"refused \[3\]"):
        await tasks[2]


@pytest.mark.parametrize(
    "error", [NotOneReply("two"), Unsupported("late", origin=Origin("c", b"wire"))]
)
async def test_unsupported_after_execution_is_not_bisected(error: GatewayError) -> None:
    """After NotOneReply, or Unsupported from the server itself, nothing is sent again."""
    bench = Bench(error, always=tenfold, max_batch_size=2)
    assert [type(error)] * 2 == await outcomes(await bench.start(request(1), request(2)))
    assert (1, 0) == (len(bench.target.calls), bench.meter.refusals)


async def test_halves_of_a_batch_share_one_slot() -> None:
    """While the halves of a rejected batch are sent, other requests keep waiting."""
    bench = Bench(InvalidRequest("no"), max_batch_size=2)
    tasks = await bench.start(request(1), request(2), request(3), request(4))
    assert [[1, 2], [1]] == bench.sent
    for task in tasks:
        task.cancel()


async def test_malformed_tensor_prevents_merging() -> None:
    """If a tensor does not fit its shape, the requests are sent one by one."""
    bench = Bench(always=picky(InvalidRequest), max_batch_size=2)
    whole = request(1)
    broken = whole.changed(inputs=(Tensor("x", Datatype.INT32, (1, 1), ints("x", [1, 2]).data),))
    await outcomes(await bench.start(broken, whole))
    assert [broken, whole] == bench.target.calls


async def test_reply_with_wrong_row_count_is_an_error() -> None:
    """A reply that cannot be split fails all requests, and nothing is sent again."""
    bench = Bench(lambda _call: tenfold(request(1)), max_batch_size=2)
    tasks = await bench.start(request(1), request(2))
    assert [UpstreamProtocolError] * 2 == await outcomes(tasks)
    assert 1 == len(bench.target.calls)


async def test_unexpected_exception_reaches_every_caller() -> None:
    """An exception that is no GatewayError is raised to each caller, merged or not."""
    bench = Bench(ValueError("bug"), ValueError("bug"), max_batch_size=2)
    tasks = await bench.start(request(1), request(2), request(3))
    await bench.advance(DELAY_S)
    assert [ValueError] * 3 == await outcomes(tasks)


async def test_call_cancelled_by_the_target_raises_cancelled() -> None:
    """A call that the target cancels itself ends with an error for each caller."""
    bench = Bench(max_batch_size=2)
    tasks = await bench.start(request(1), request(2))
    bench.target.waiting[0].cancel()
    assert [Cancelled] * 2 == await outcomes(tasks)


# --- cancelled callers ---


async def test_cancelled_waiting_request_is_not_sent() -> None:
    """The rows of a cancelled caller are removed from the batch."""
    bench = Bench(always=tenfold)
    tasks = await bench.start(request(1), request(2), request(3))
    tasks[1].cancel()
    await settle()
    await bench.advance(DELAY_S)
    assert [[1, 3]] == bench.sent
    assert [[10], asyncio.CancelledError, [30]] == await outcomes(tasks)


async def test_group_without_callers_is_removed() -> None:
    """A group whose only request is cancelled is not sent; the next request waits a full delay."""
    bench = Bench(always=tenfold)
    (task,) = await bench.start(request(1))
    task.cancel()
    await settle()
    bench.clock.advance(DELAY_S / 2)
    (task,) = await bench.start(request(2))
    await bench.advance(DELAY_S / 2)
    assert [] == bench.sent
    await bench.advance(DELAY_S / 2)
    assert [[20]] == await outcomes([task])


async def test_cancelled_caller_does_not_end_a_running_call() -> None:
    """The other callers of the batch get their replies."""
    bench = Bench(max_batch_size=2)
    tasks = await bench.start(request(1), request(2))
    tasks[0].cancel()
    await settle()
    assert 0 == bench.target.cancelled
    bench.target.waiting[0].set_result(tenfold(request(1, 2)))
    assert [asyncio.CancelledError, [20]] == await outcomes(tasks)


async def test_call_without_callers_is_cancelled() -> None:
    """When all callers are cancelled, the call is too, and the next batch is sent."""
    bench = Bench(max_batch_size=2)
    tasks = await bench.start(request(1), request(2), request(3), request(4))
    for task in tasks[:2]:
        task.cancel()
    await settle()
    assert 1 == bench.target.cancelled
    assert [[1, 2], [3, 4]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(request(3, 4)))
    assert [[30], [40]] == await outcomes(tasks[2:])


async def test_half_without_callers_is_cancelled() -> None:
    """A half whose caller is cancelled ends, and the other half is sent."""
    bench = Bench(InvalidRequest("no"), max_batch_size=2)
    tasks = await bench.start(request(1), request(2))
    tasks[0].cancel()
    await settle()
    assert 1 == bench.target.cancelled
    assert [[1, 2], [1], [2]] == bench.sent
    bench.target.waiting[1].set_result(tenfold(request(2)))
    assert [asyncio.CancelledError, [20]] == await outcomes(tasks)


@pytest.mark.parametrize("at_once", [True, False])
async def test_halves_without_callers_are_not_sent(at_once: bool) -> None:
    """When all callers are cancelled, no further half is sent and the slot is released."""
    bench = Bench(InvalidRequest("no"), max_batch_size=2)
    tasks = await bench.start(request(1), request(2))
    for task in reversed(tasks):
        task.cancel()
        if not at_once:
            await settle()
    await settle()
    assert [[1, 2], [1]] == bench.sent
    (task,) = await bench.start(request(3))
    await bench.advance(DELAY_S)
    assert [3] == bench.sent[-1]
    task.cancel()


async def test_delay_uses_the_event_loop_by_default() -> None:
    """Without an injected clock, timers of the event loop end the delay."""
    service: Service = Bench(always=tenfold)._service
    batch = Batch(service, BatchRules(max_delay_s=0.001))
    tasks = [asyncio.ensure_future(batch(request(value))) for value in (1, 2)]
    assert [[10], [20]] == await outcomes(tasks)


@pytest.mark.parametrize(
    ("errors", "is_received"),
    [
        ((NotSent("closed"),), False),
        ((Unavailable("broken"),), True),
        ((InvalidRequest("bad", model=M), NotSent("closed"), NotSent("closed")), True),
    ],
)
async def test_a_rejected_batch_was_forgotten_when_its_halves_were_not_sent(
    errors: tuple[GatewayError, ...], is_received: bool
) -> None:
    """The path of each caller tells whether a target may have received any batch with its call."""
    bench = Bench(*errors, max_batch_size=2)
    paths = []
    tasks = []
    for value in (1, 2):
        paths.append(CallPath())
        CALL_PATH.set(paths[-1])
        tasks += await bench.start(request(value))
    await asyncio.wait(tasks)
    assert {is_received} == {path.is_received for path in paths}
    assert {type(errors[-1])} == {type(task.exception()) for task in tasks}
