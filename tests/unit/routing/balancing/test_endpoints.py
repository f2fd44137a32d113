"""Endpoints: which one receives a call, and which one is ejected for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from gateway.ir.attempts import ATTEMPT, CallAttempt
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef, Origin
from gateway.ir.errors import (
    DeadlineExceeded,
    ErrorCode,
    Forbidden,
    GatewayError,
    InternalError,
    InvalidRequest,
    NotFound,
    NotSent,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.tensors.data import StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.policies.limits.policy import CallLimits
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.load_balancing import BalancingPolicy, LoadBalancer
from gateway.routing.balancing.outlier_detection import OFF, OutlierDetection
from tests.fakes import FakeArriving, FakeClock, FakeStream, HangingStream, ScriptedService, settle

CALL = InferRequest(model=ModelRef("m"))
DOWN = Unavailable("down")
REPLY = InferResponse(model=ModelRef("m"), outputs=())


def several(
    count: int, policy: BalancingPolicy = BalancingPolicy.ROUND_ROBIN, **settings: object
) -> tuple[Endpoints, list[ScriptedService], FakeClock]:
    clock = FakeClock()
    services = [ScriptedService(always=REPLY) for _ in range(count)]
    endpoints = [Endpoint(f"e{n}", service) for n, service in enumerate(services)]
    balancer = LoadBalancer(policy)
    return Endpoints("up", endpoints, balancer=balancer, clock=clock, **settings), services, clock  # type: ignore[arg-type]  # settings are of mixed types


def fail(service: ScriptedService, error: BaseException | InferResponse) -> None:
    service._always = error


async def send_calls(endpoints: Endpoints, times: int = 1) -> None:
    for _ in range(times):
        with contextlib.suppress(GatewayError):
            await endpoints(CALL)


def counts(services: list[ScriptedService]) -> list[int]:
    return [len(service.calls) for service in services]


def test_an_upstream_needs_an_endpoint() -> None:
    """An upstream without endpoints is a configuration error."""
    with pytest.raises(ValueError, match="upstream 'up' has no endpoints"):
        Endpoints("up", [])


async def test_an_unready_endpoint_does_not_skew_the_other_shares() -> None:
    """The four others share 2,000 calls evenly, also when the draw finds the unready one."""
    endpoints, services, _ = several(5, BalancingPolicy.LEAST_REQUEST)
    endpoints.endpoints[2].probed(ready=False)
    await send_calls(endpoints, 2000)
    first, second, unready, fourth, fifth = counts(services)
    assert 0 == unready
    assert 400 < min(first, second, fourth, fifth)


@pytest.mark.parametrize("policy", BalancingPolicy)
async def test_retries_avoid_tried_endpoints(policy: BalancingPolicy) -> None:
    """Each attempt gets another endpoint; with all tried, not the one tried last."""
    endpoints, services, _ = several(3, policy)
    tried: tuple[str, ...] = ()
    for _ in range(3):
        ATTEMPT.set(attempt := CallAttempt(tried))
        await send_calls(endpoints)
        assert attempt.tried not in tried
        tried = (*tried, attempt.tried)
    assert [1, 1, 1] == counts(services)
    for _ in range(3):
        ATTEMPT.set(attempt := CallAttempt(tried))
        await send_calls(endpoints)
        assert tried[-1] != attempt.tried


async def test_errors_name_the_failed_endpoint() -> None:
    """A retry needs the name to select another endpoint."""
    endpoints, services, _ = several(2)
    for number, service in enumerate(services):
        fail(service, Unavailable(f"down {number}"))
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await endpoints(CALL)
        assert caught.value.attempted == caught.value.message.replace("down ", "e")


async def test_round_robin_shares_calls_evenly() -> None:
    """Each endpoint gets the same share."""
    endpoints, services, _ = several(3)
    await send_calls(endpoints, 9)
    assert [3, 3, 3] == counts(services)


async def test_least_pending_avoids_the_busy_endpoint() -> None:
    """The endpoint with the fewest calls in flight is selected."""
    busy, idle = ScriptedService(), ScriptedService(always=REPLY)
    endpoints = Endpoints("up", [Endpoint("busy", busy), Endpoint("idle", idle)])
    tasks = [asyncio.ensure_future(endpoints(CALL)) for _ in range(2)]
    await settle()
    await send_calls(endpoints, 5)
    assert (1, 6) == (len(busy.calls), len(idle.calls))
    busy.waiting[0].set_result(REPLY)
    assert [REPLY, REPLY] == await asyncio.gather(*tasks)
    assert [0, 0] == [endpoint.pending for endpoint in endpoints.endpoints]


async def test_idle_endpoints_share_under_least_pending() -> None:
    """Ties do not all go to the first endpoint."""
    endpoints, services, _ = several(2, BalancingPolicy.LEAST_REQUEST)
    await send_calls(endpoints, 4)
    assert [2, 2] == counts(services)


async def test_stream_is_pending_until_it_is_closed() -> None:
    """A stream counts as in flight while it is open."""
    both = [Endpoint(name, ScriptedService(FakeStream([REPLY]))) for name in ("a", "b")]
    endpoints = Endpoints("up", both)
    items = await endpoints(StreamInferRequest(request=CALL))
    assert [0, 1] == sorted(endpoint.pending for endpoint in both)
    await close_stream(items)
    assert [0, 0] == [endpoint.pending for endpoint in both]


async def test_a_slow_endpoint_gets_few_calls_and_is_tried_again() -> None:
    """It receives a call every few seconds, and its share once it is fast again."""
    endpoints, services, clock = several(3, BalancingPolicy.LEAST_REQUEST)

    async def slow(_call: object) -> InferResponse:
        clock.advance(0.5)
        return REPLY

    async def fast(_call: object) -> InferResponse:
        clock.advance(0.01)
        return REPLY

    for service in services:
        service._always = fast
    services[0]._always = slow
    await send_calls(endpoints, 1000)  # some 10 s
    assert 1 <= len(services[0].calls) <= 10
    services[0]._always = fast
    before = len(services[0].calls)
    await send_calls(endpoints, 2000)
    assert len(services[0].calls) - before > 300


async def test_a_returning_endpoint_starts_slowly() -> None:
    """Its share grows from a tenth over the slow start."""
    endpoints, services, clock = several(2, slow_start_s=10.0, draw=lambda: 0.35)
    endpoints.endpoints[0].probed(ready=False)
    await send_calls(endpoints, 4)
    endpoints.endpoints[0].probed(ready=True)
    await send_calls(endpoints, 10)
    assert [0, 14] == counts(services)
    clock.advance(4)  # a share of 0.4 is above the draw
    await send_calls(endpoints, 10)
    assert [5, 19] == counts(services)


@pytest.mark.parametrize(("seconds", "ejected"), [(0.09, False), (0.11, True)])
async def test_an_endpoint_slower_than_the_others_is_ejected(seconds: float, ejected: bool) -> None:
    """Its mean latency is compared with the median of the others once per interval."""
    rules = OutlierDetection(slow_factor=10.0, min_requests=5, interval_s=2.0)
    causes: list[str] = []
    endpoints, services, clock = several(
        3, outliers=rules, on_ejected=lambda _name, cause: causes.append(cause)
    )

    def taking(latency_s: float) -> Callable[[object], Awaitable[InferResponse]]:
        async def reply(_call: object) -> InferResponse:
            clock.advance(latency_s)
            return REPLY

        return reply

    for service in services:
        service._always = taking(0.01)
    services[0]._always = taking(seconds)
    await send_calls(endpoints, 60)
    assert (["slow"] if ejected else []) == causes
    assert ejected == (endpoints.endpoints[0].health.ejected_until is not None)


@pytest.mark.parametrize(
    ("error", "codes", "ejects"),
    [
        (UpstreamProtocolError("garbage"), frozenset(), True),
        (InternalError("broken"), frozenset(), False),
        (InternalError("broken"), frozenset({ErrorCode.INTERNAL}), True),
        (InvalidRequest("wrong"), frozenset({ErrorCode.INTERNAL}), False),
    ],
)
async def test_ejecting_error_codes_are_configurable(
    error: GatewayError, codes: frozenset[ErrorCode], ejects: bool
) -> None:
    """Undecodable responses always count, as do the listed codes."""
    endpoints, services, _ = several(2, outliers=OutlierDetection(failure_codes=codes))
    fail(services[0], error)
    await send_calls(endpoints, 20)
    assert ejects == (endpoints.endpoints[0].health.ejected_until is not None)


async def test_five_consecutive_failures_eject() -> None:
    """The endpoint receives no calls for 5 s, then one trial call."""
    endpoints, services, clock = several(2)
    fail(services[0], DOWN)
    await send_calls(endpoints, 10)
    assert [5, 5] == counts(services)
    await send_calls(endpoints, 10)
    assert [5, 15] == counts(services)
    clock.advance(5)
    await send_calls(endpoints, 10)
    assert [6, 24] == counts(services)


async def test_a_successful_trial_ends_the_ejection() -> None:
    """Afterwards the endpoint receives its share again."""
    endpoints, services, clock = several(2)
    fail(services[0], DOWN)
    await send_calls(endpoints, 10)
    fail(services[0], REPLY)
    clock.advance(5)
    await send_calls(endpoints, 10)
    assert [10, 10] == counts(services)


async def test_a_successful_probe_allows_an_early_trial() -> None:
    """A recovered server does not wait for the end of its ejection."""
    endpoints, services, _ = several(2)
    fail(services[0], DOWN)
    await send_calls(endpoints, 10)
    fail(services[0], REPLY)
    endpoints.endpoints[0].probed(ready=True)
    await send_calls(endpoints, 10)
    assert [10, 10] == counts(services)


async def test_a_failed_trial_delays_the_next_one() -> None:
    """A server whose probes succeed while its calls fail costs few callers an error."""
    endpoints, services, clock = several(2)
    fail(services[0], DOWN)
    await send_calls(endpoints, 10)
    for _ in range(5):
        endpoints.endpoints[0].probed(ready=True)
        await send_calls(endpoints, 10)
    assert 6 == len(services[0].calls)
    clock.advance(2.4)
    endpoints.endpoints[0].probed(ready=True)
    await send_calls(endpoints, 10)
    assert 6 == len(services[0].calls)
    clock.advance(7.5)
    await send_calls(endpoints, 10)
    assert 6 == len(services[0].calls)
    clock.advance(0.1)
    await send_calls(endpoints, 10)
    assert 7 == len(services[0].calls)


async def test_a_recovered_server_receives_calls_after_a_long_outage() -> None:
    """A successful probe allows a trial, whatever the length of the ejection."""
    endpoints, services, clock = several(2)
    health = endpoints.endpoints[0].health
    fail(services[0], DOWN)
    for _ in range(120):  # ten minutes, with a probe each 5 s
        clock.advance(5)
        endpoints.endpoints[0].probed(ready=True)
        await send_calls(endpoints, 10)
    assert health.ejected_until is not None
    assert health.ejected_until > clock() + 50
    assert len(services[0].calls) <= 5 + 120
    fail(services[0], REPLY)
    clock.advance(5)
    endpoints.endpoints[0].probed(ready=True)
    await send_calls(endpoints, 10)
    assert health.ejected_until is None


async def test_one_trial_runs_at_a_time() -> None:
    """The other endpoints receive the calls until it ends."""
    endpoints, services, clock = several(2)
    fail(services[0], DOWN)
    await send_calls(endpoints, 10)
    services[0]._always = None
    clock.advance(5)
    tasks = [asyncio.ensure_future(endpoints(CALL)) for _ in range(6)]
    await settle()
    assert [6, 10] == counts(services)
    services[0].waiting[0].set_result(REPLY)
    await asyncio.gather(*tasks)


async def test_ejections_grow_and_are_reset() -> None:
    """Each ejection is longer, up to a cap; a long success resets the count."""
    rules = OutlierDetection(consecutive_failures=1, base_ejection_s=10, max_ejection_s=20)
    endpoints, services, clock = several(2, outliers=rules)
    health = endpoints.endpoints[0].health
    fail(services[0], DOWN)
    lengths = []
    for _ in range(3):
        await send_calls(endpoints, 2)
        assert health.ejected_until is not None
        lengths.append(health.ejected_until - clock())
        clock.now = health.ejected_until
    assert [10, 20, 20] == lengths
    fail(services[0], REPLY)
    await send_calls(endpoints, 2)
    assert (None, 3) == (health.ejected_until, health.ejections)
    clock.advance(30)
    await send_calls(endpoints, 2)
    assert 0 == health.ejections


async def test_other_outcomes_do_not_eject() -> None:
    """A client's error resets the failures; an internal or overload error does not count."""
    endpoints, services, _ = several(2)
    health = endpoints.endpoints[0].health
    fail(services[0], DOWN)
    await send_calls(endpoints, 8)
    assert 4 == health.failures
    for error in (Overloaded("full"), RuntimeError("bug")):
        fail(services[0], error)
        try:
            await send_calls(endpoints, 2)
        except RuntimeError:
            await send_calls(endpoints)
        assert 4 == health.failures
    fail(services[0], InvalidRequest("wrong"))
    await send_calls(endpoints, 2)
    assert 0 == health.failures


async def test_consecutive_timeouts_eject() -> None:
    """A hanging endpoint is ejected by deadline errors and by cancellations at the deadline."""
    endpoints, services, clock = several(2)
    hanging, other = services
    hanging._always = None
    for number in range(6):
        late = CALL.with_deadline(clock() + 1.5)
        tasks = [asyncio.ensure_future(endpoints(late)) for _ in range(2)]
        await settle()
        clock.advance(1.5)
        if number == 5:
            assert not hanging.waiting
        elif number % 2:
            tasks[0].cancel()
            tasks[1].cancel()
        else:
            hanging.waiting[-1].set_exception(DeadlineExceeded("late"))
        await asyncio.gather(*tasks, return_exceptions=True)
        hanging.waiting.clear()
    assert (5, 7) == (len(hanging.calls), len(other.calls))


@pytest.mark.parametrize(("is_client_gone", "failed"), [(False, 5), (True, 0)])
async def test_hanging_streams_ejected_nothing(is_client_gone: bool, failed: int) -> None:
    """The route's timeout ends a stream without a reply; the endpoint does not know that time."""
    endpoints, services, clock = several(2)
    services[0]._always = lambda _call: HangingStream()
    services[1]._always = lambda _call: FakeStream([REPLY])
    limits = CallLimits(endpoints, None if is_client_gone else 0.01)
    for _ in range(12):
        items = await limits(StreamInferRequest(request=CALL))
        clock.advance(1.5)
        reading = asyncio.ensure_future(anext(items))
        await settle()
        if is_client_gone:
            reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await close_stream(items)
    health = endpoints.endpoints[0].health
    assert (failed == 5, 5 if failed else 6) == (health.ejections == 1, len(services[0].calls))


@pytest.mark.parametrize(("remaining_bytes", "timeouts"), [(0, 1), (1, 0)])
async def test_hanging_endpoint_with_a_large_body_had_no_timeout(
    remaining_bytes: int, timeouts: int
) -> None:
    """Only a client that has sent its whole body waits for the endpoint."""
    endpoints, services, clock = several(2)
    services[0]._always = services[1]._always = None
    body = FakeArriving(bytes(4), 0)
    body.remaining_bytes = remaining_bytes
    data = StreamedData(body, 0, 4)
    call = CALL.changed(inputs=(Tensor("x", Datatype.UINT8, (4,), data),))
    limits = CallLimits(endpoints, 0.01)
    calling = asyncio.ensure_future(limits(call))
    await settle()
    clock.advance(1.5)
    with pytest.raises(DeadlineExceeded):
        await calling
    assert timeouts == sum(each.health.timeouts for each in endpoints.endpoints)


async def test_short_client_deadlines_eject_nothing() -> None:
    """A timeout counts after a second, or five times the usual latency."""
    endpoints, services, _ = several(2)
    fail(services[0], DeadlineExceeded("late"))
    await send_calls(endpoints, 40)
    assert [20, 20] == counts(services)


async def test_unreachable_endpoints_fail_no_calls() -> None:
    """With two of three endpoints down, the third one replies to each call."""
    endpoints, services, clock = several(3)
    for service in services[:2]:
        fail(service, NotSent("refused"))
    for _ in range(4):
        assert [REPLY] * 10 == [await endpoints(CALL) for _ in range(10)]
        clock.advance(1)
    assert 40 == len(services[2].calls)
    assert len(services[0].calls) + len(services[1].calls) <= 10


@pytest.mark.parametrize("starting", [0, 1])
async def test_a_partly_read_body_was_sent_again(starting: int) -> None:
    """An attempt that has read a part of the body is the last one."""
    endpoints, services, _ = several(3)
    body = FakeArriving(bytes(4), 0)
    call = CALL.changed(
        inputs=(Tensor("x", Datatype.UINT8, (4,), StreamedData(body, 0, 4)),),
    )
    attempts = 0

    def refuse(_call: object) -> object:
        nonlocal attempts
        body.is_started = attempts == starting
        attempts += 1
        raise NotSent("refused")

    for service in services:
        service._always = refuse
    with pytest.raises(NotSent, match="refused"):
        await endpoints(call)
    assert starting + 1 == attempts


async def test_a_sent_call_is_not_sent_to_another_endpoint() -> None:
    """A broken connection may have delivered the call to the model."""
    endpoints, services, _ = several(2)
    fail(services[0], DOWN)
    fail(services[1], DOWN)
    with pytest.raises(Unavailable, match="down"):
        await endpoints(CALL)
    assert 1 == sum(counts(services))


async def test_an_ejection_is_reported() -> None:
    """The report has the endpoint and the cause for the metric."""
    seen: list[tuple[str, str]] = []
    endpoints, services, _ = several(2, on_ejected=lambda name, cause: seen.append((name, cause)))
    fail(services[0], DOWN)
    await send_calls(endpoints, 20)
    assert [("e0", "failures")] == seen


async def test_ejections_never_remove_the_last_endpoint() -> None:
    """Of three failing endpoints two are ejected, of one none."""
    endpoints, services, _ = several(3)
    for service in services:
        fail(service, DOWN)
    await send_calls(endpoints, 60)
    ejected = [endpoint.health.ejected_until is not None for endpoint in endpoints.endpoints]
    assert 2 == sum(ejected)
    single, services, _ = several(1)
    fail(services[0], Unavailable("down"))
    await send_calls(single, 60)
    assert single.ready()


async def test_the_last_available_endpoint_is_not_ejected() -> None:
    """It stays while the others are not ready, whatever its failures."""
    endpoints, services, _ = several(2)
    endpoints.endpoints[1].is_ready = False
    fail(services[0], Unavailable("down"))
    await send_calls(endpoints, 20)
    assert ([20, 0], True) == (counts(services), endpoints.ready())


async def test_ejection_can_be_turned_off() -> None:
    """With detection off nothing is ejected."""
    endpoints, services, _ = several(2, outliers=OFF)
    fail(services[0], Unavailable("down"))
    await send_calls(endpoints, 40)
    assert [20, 20] == counts(services)


async def test_calls_in_flight_do_not_eject_twice() -> None:
    """Failures that arrive after the ejection do not make it longer."""
    slow, good = ScriptedService(), ScriptedService(always=REPLY)
    clock = FakeClock()
    endpoints = Endpoints(
        "up",
        [Endpoint("slow", slow), Endpoint("good", good)],
        balancer=LoadBalancer(BalancingPolicy.ROUND_ROBIN),
        outliers=OutlierDetection(consecutive_failures=1),
        clock=clock,
    )
    tasks = [asyncio.ensure_future(endpoints(CALL)) for _ in range(4)]
    await settle()
    for future in slow.waiting:
        future.set_exception(Unavailable("down"))
    await asyncio.gather(*tasks, return_exceptions=True)
    health = endpoints.endpoints[0].health
    assert (1, clock() + 5) == (health.ejections, health.ejected_until)


@pytest.mark.parametrize("outcome", [DOWN, REPLY, Overloaded("full")])
async def test_an_earlier_call_counted_as_the_trial(
    outcome: GatewayError | InferResponse,
) -> None:
    """Only the trial itself decides whether the ejection ends, and only one runs."""
    endpoints, services, clock = several(2)
    returned, health = services[0], endpoints.endpoints[0].health
    returned._always = None
    early = [asyncio.ensure_future(endpoints(CALL)) for _ in range(2)]
    await settle()
    fail(returned, DOWN)
    clock.advance(1)
    await send_calls(endpoints, 10)
    returned._always = None
    clock.advance(5)
    trial = [asyncio.ensure_future(endpoints(CALL)) for _ in range(2)]
    await settle()
    if isinstance(outcome, GatewayError):
        returned.waiting[0].set_exception(outcome)
    else:
        returned.waiting[0].set_result(outcome)
    await asyncio.gather(*early, return_exceptions=True)
    assert (True, 1) == (health.has_trial_call, health.ejections)
    returned.waiting[1].set_result(REPLY)
    await asyncio.gather(*trial)
    assert health.ejected_until is None


async def test_one_failure_ejected_a_formerly_slow_endpoint() -> None:
    """The last available endpoint stays although slow; later only its failures count."""
    rules = OutlierDetection(slow_factor=10.0, min_requests=1, interval_s=1.0)
    causes: list[str] = []
    endpoints, services, clock = several(
        2, outliers=rules, on_ejected=lambda _name, cause: causes.append(cause)
    )

    async def slow(_call: object) -> InferResponse:
        clock.advance(0.5)
        return REPLY

    services[0]._always = slow
    await send_calls(endpoints, 2)
    endpoints.endpoints[1].is_ready = False
    await send_calls(endpoints, 2)  # in these the latencies are compared
    endpoints.endpoints[1].is_ready = True
    fail(services[0], DOWN)
    await send_calls(endpoints, 2)
    assert [] == causes


async def test_all_endpoints_are_tried_when_none_is_healthy() -> None:
    """Wrong health data must not cause a total outage."""
    endpoints, services, _ = several(2)
    for endpoint in endpoints.endpoints:
        endpoint.is_ready = False
    await send_calls(endpoints, 4)
    assert ([2, 2], False) == (counts(services), endpoints.ready())


def ranked(*ranks: int) -> tuple[Endpoints, list[ScriptedService], FakeClock]:
    endpoints, services, clock = several(len(ranks))
    for endpoint, rank in zip(endpoints.endpoints, ranks, strict=True):
        endpoint.rank = rank
    endpoints.replace(endpoints.endpoints)
    return endpoints, services, clock


async def test_later_ranks_take_over() -> None:
    """They receive calls only while no endpoint of an earlier rank is available."""
    endpoints, services, _ = ranked(1, 0, 0, 1)
    await send_calls(endpoints, 4)
    assert [0, 2, 2, 0] == counts(services)
    endpoints.endpoints[1].probed(ready=False)
    await send_calls(endpoints, 4)
    assert [0, 2, 6, 0] == counts(services)
    endpoints.endpoints[2].probed(ready=False)
    await send_calls(endpoints, 4)
    assert [2, 2, 6, 2] == counts(services)
    endpoints.endpoints[1].probed(ready=True)
    await send_calls(endpoints, 4)
    assert [2, 6, 6, 2] == counts(services)


async def test_an_unsent_call_is_sent_to_the_next_rank() -> None:
    """Callers see no error while an endpoint of any rank is reachable."""
    endpoints, services, _ = ranked(2, 1, 0)
    fail(services[2], NotSent("refused"))
    fail(services[1], NotSent("refused"))
    assert REPLY == await endpoints(CALL)
    assert [1, 1, 1] == counts(services)


async def test_new_sequences_start_at_the_first_rank() -> None:
    """A sequence that started at a later rank stays there."""
    endpoints, services, _ = ranked(1, 0)
    endpoints.endpoints[1].probed(ready=False)
    first = InferRequest(model=ModelRef("m"), sequence=CallSequence(1, start=True))
    await endpoints(first)
    endpoints.endpoints[1].probed(ready=True)
    await endpoints(first.changed(sequence=CallSequence(1)))
    assert [2, 0] == counts(services)
    for number in range(2, 20):
        await endpoints(first.changed(sequence=CallSequence(number, start=True)))
    assert [2, 18] == counts(services)


async def test_calls_and_sequences_follow_weights() -> None:
    """The shares of new sequences are those of calls."""
    endpoints, services, _ = several(2)
    endpoints.endpoints[0].weight = 3.0
    endpoints.replace(endpoints.endpoints)
    await send_calls(endpoints, 400)
    assert [300, 100] == counts(services)
    for number in range(400):
        await endpoints(
            InferRequest(model=ModelRef("m"), sequence=CallSequence(number, start=True))
        )
    assert 560 < counts(services)[0] < 640


async def test_a_sequence_stays_at_one_endpoint() -> None:
    """All its requests reach the endpoint of the first one."""
    endpoints, services, _ = several(3)
    for number in range(6):
        await endpoints(CALL.changed(sequence=CallSequence(7, start=number == 0)))
    assert [0, 0, 6] == sorted(counts(services))


def in_sequence(*, start: bool = False) -> InferRequest:
    return CALL.changed(sequence=CallSequence(7, start=start))


def _holder(services: list[ScriptedService]) -> ScriptedService:
    (holder,) = [service for service in services if service.calls]
    return holder


@pytest.mark.parametrize("error", [Unavailable("broke off"), NotSent("cannot connect")])
async def test_a_lost_endpoint_ends_its_sequence(error: Unavailable) -> None:
    """Its state is lost: no endpoint receives further requests until the client restarts it."""
    endpoints, services, _ = several(3)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    fail(holder, error)
    with pytest.raises(Unavailable, match="sequence 7 is lost; restart it: ") as caught:
        await endpoints(in_sequence())
    assert error is caught.value.__cause__
    assert type(caught.value) is Unavailable  # nothing that a retry would take for unsent
    fail(holder, REPLY)
    with pytest.raises(Unavailable, match="sequence 7 is lost: its endpoint"):
        await endpoints(in_sequence())
    assert [0, 0, 2] == sorted(counts(services))
    assert REPLY == await endpoints(in_sequence(start=True))
    assert [0, 1, 2] == sorted(counts(services))


async def test_a_server_error_does_not_end_the_sequence() -> None:
    """After an error such as a full queue, the sequence continues at its endpoint."""
    endpoints, services, _ = several(3)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    fail(holder, Unavailable("queue full", origin=Origin("oip.grpc", None)))
    with pytest.raises(Unavailable, match=r"^queue full$"):
        await endpoints(in_sequence())
    fail(holder, REPLY)
    assert REPLY == await endpoints(in_sequence())


async def test_a_broken_stream_ends_its_sequence() -> None:
    """The break may follow the first reply."""
    endpoints, services, _ = several(3)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    holder._always = FakeStream([REPLY, Unavailable("broke off")])
    stream = await endpoints(StreamInferRequest(model=CALL.model, request=in_sequence()))
    assert REPLY == await anext(stream)
    with pytest.raises(Unavailable, match="broke off"):
        await anext(stream)
    with pytest.raises(Unavailable, match="restart the sequence"):
        await endpoints(in_sequence())


async def test_an_idle_sequence_may_move() -> None:
    """After `sequence_idle_s` the id is free again."""
    endpoints, services, clock = several(2, sequence_idle_s=10.0)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    endpoints.endpoints[services.index(holder)].is_ready = False
    clock.advance(10.0)
    assert REPLY == await endpoints(in_sequence())
    assert [1, 1] == counts(services)


SAID = Origin("oip.http", None)
BUSY = Overloaded("full", origin=SAID)


@pytest.mark.parametrize(
    "error",
    [
        BUSY,
        Unavailable("no", origin=SAID),
        UpstreamError("no", origin=SAID),
        Unsupported("no", origin=SAID),
        Unauthenticated("no", origin=SAID),
        Forbidden("no", origin=SAID),
        DeadlineExceeded("no", origin=SAID),
    ],
    ids=lambda error: error.code.value,
)
async def test_a_server_that_replies_with_errors_is_set_aside(error: GatewayError) -> None:
    """Three of its replies do that; a trial a second later brings it back."""
    endpoints, services, clock = several(3, draw=lambda: 0.0)
    fail(services[0], error)
    await send_calls(endpoints, 30)
    assert 3 == len(services[0].calls)
    fail(services[0], REPLY)
    clock.advance(1)
    await send_calls(endpoints, 30)
    assert 10 < len(services[0].calls)


async def test_a_server_that_ends_calls_at_their_deadline_keeps_its_share() -> None:
    """The time of the caller explains the error, which says nothing about the server."""
    endpoints, services, clock = several(3)

    async def reply_late(_call: object) -> InferResponse:
        clock.advance(0.9)
        raise DeadlineExceeded("late", origin=SAID)

    endpoints.endpoints[0].service = reply_late  # type: ignore[assignment]  # a Service of one type
    for _ in range(30):
        with contextlib.suppress(GatewayError):
            await endpoints(CALL.with_deadline(clock() + 1))
    assert [10, 10] == counts(services)[1:]


async def test_the_log_marks_the_text_of_a_refusing_server() -> None:
    """Its text may quote what clients sent, so the line does not have all of it."""
    endpoints, services, _ = several(3, draw=lambda: 0.0)
    fail(services[0], Overloaded("full: " + "4111 " * 100, origin=SAID))
    with capture_logs() as lines:
        await send_calls(endpoints, 30)
    (line,) = [each for each in lines if each["event"] == "endpoint refuses calls"]
    assert line["error"].startswith("server said: full: 4111 ")
    assert line["error"].endswith("... (386 more characters)")


async def test_trials_of_a_refusing_server_become_rare() -> None:
    """They follow after 1, 2, 4 and then 5 seconds."""
    endpoints, services, clock = several(3, draw=lambda: 0.0)
    fail(services[0], BUSY)
    await send_calls(endpoints, 10)
    trials = []
    for tenth in range(1, 200):
        clock.advance(0.1)
        before = len(services[0].calls)
        await send_calls(endpoints, 10)
        if len(services[0].calls) > before:
            trials.append(tenth / 10)
    assert [1, 3, 7, 12, 17] == [round(trial) for trial in trials]


async def test_one_trial_of_a_refusing_server_runs_at_a_time() -> None:
    """The others get the calls until it has a reply, for a second at most."""
    endpoints, services, clock = several(3, draw=lambda: 0.0)
    fail(services[0], BUSY)
    await send_calls(endpoints, 10)
    services[0]._always = None
    clock.advance(1)
    calls = [asyncio.ensure_future(endpoints(CALL)) for _ in range(12)]
    await settle()
    assert 4 == len(services[0].calls)
    services[0].waiting[0].set_result(REPLY)
    await asyncio.gather(*calls)


async def test_a_server_gets_its_requested_pause() -> None:
    """One refusal is enough, replies to earlier calls change nothing, and an hour is 60 s."""
    endpoints, services, clock = several(2)
    busy = Overloaded("full", origin=SAID)
    busy.retry_after_s = 3600.0
    services[0]._always = None
    early = [asyncio.ensure_future(endpoints(CALL)) for _ in range(2)]
    await settle()
    fail(services[0], busy)
    await send_calls(endpoints, 2)
    count = len(services[0].calls)
    services[0].waiting[0].set_result(REPLY)
    await asyncio.gather(*early)
    await send_calls(endpoints, 10)
    assert count == len(services[0].calls)
    clock.advance(60)
    await send_calls(endpoints, 10)
    assert count < len(services[0].calls)


@pytest.mark.parametrize(("failing", "has_alternative"), [(1, True), (3, False)])
async def test_a_refusal_names_no_alternative_where_all_refuse(
    failing: int, has_alternative: bool
) -> None:
    """A retry needs to know."""
    endpoints, services, _ = several(3)
    for service in services[:failing]:
        fail(service, Overloaded("full", origin=SAID))
    errors = []
    for _ in range(60):
        try:
            await endpoints(CALL)
        except Overloaded as error:
            errors.append(error.has_alternative)
    assert has_alternative is errors[-1]


async def test_a_full_queue_of_the_gateway_lowers_no_share() -> None:
    """Only a reply of the server does."""
    endpoints, services, _ = several(2)
    fail(services[0], Overloaded("full", limit="pending"))
    await send_calls(endpoints, 40)
    assert [20, 20] == counts(services)


async def test_with_detection_off_no_share_is_lowered() -> None:
    """Each server keeps its part of the calls."""
    endpoints, services, _ = several(2, outliers=OFF)
    fail(services[0], BUSY)
    await send_calls(endpoints, 40)
    assert [20, 20] == counts(services)


async def test_refused_questions_lower_no_share() -> None:
    """A server without metadata may serve inferences."""
    endpoints, services, _ = several(2)
    fail(services[0], NotFound("no metadata", origin=SAID))
    for _ in range(20):
        with contextlib.suppress(NotFound):
            await endpoints(ModelMetadataRequest(model=CALL.model))
    fail(services[0], REPLY)
    await send_calls(endpoints, 20)
    assert [20, 20] == counts(services)


async def test_a_refusal_does_not_end_a_sequence() -> None:
    """Its endpoint keeps it, and new ones begin at another."""
    endpoints, services, _ = several(3, draw=lambda: 0.0)
    await endpoints(in_sequence(start=True))
    holder = _holder(services)
    fail(holder, BUSY)
    for _ in range(3):
        with pytest.raises(Overloaded):
            await endpoints(in_sequence())
    others = [service for service in services if service is not holder]
    for number in range(20):
        await endpoints(in_sequence().changed(sequence=CallSequence(f"s{number}", start=True)))
    assert 20 == sum(counts(others))
    fail(holder, REPLY)
    assert REPLY == await endpoints(in_sequence())


@pytest.mark.parametrize("first", [True, False])
async def test_streams_that_begin_with_an_error_attracted_calls(first: bool) -> None:
    """A server of gRPC refuses a call within its stream; a later error is one of the model."""
    endpoints, services, _ = several(3, draw=lambda: 0.0)
    refusal = REPLY.changed(error=Unavailable("Exceeds maximum queue size"))
    items = [refusal] if first else [REPLY, refusal]
    services[0]._always = lambda _call: FakeStream(list(items))
    for service in services[1:]:
        service._always = lambda _call: FakeStream([REPLY])
    for _ in range(30):
        async for _item in await endpoints(StreamInferRequest(request=CALL)):
            pass
    assert [3 if first else 10] == counts(services)[:1]
    assert [0, 0, 0] == [endpoint.pending for endpoint in endpoints.endpoints]


async def test_a_full_server_was_ejected_while_it_served() -> None:
    """It says that it is unavailable; its calls in flight show that it is not."""
    endpoints, services, _ = several(2, BalancingPolicy.ROUND_ROBIN)
    services[0]._always = None
    early = [asyncio.ensure_future(endpoints(CALL)) for _ in range(2)]
    await settle()
    fail(services[0], Unavailable("Exceeds maximum queue size", origin=SAID))
    await send_calls(endpoints, 200)
    assert 0 == endpoints.endpoints[0].health.ejections
    services[0].waiting[0].set_result(REPLY)
    await asyncio.gather(*early)


async def test_a_slow_trial_prolongs_the_ejection_of_a_slow_endpoint() -> None:
    """A stream does not show the latency, so another call is the trial."""
    rules = OutlierDetection(slow_factor=10.0, min_requests=1, interval_s=1.0)
    endpoints, services, clock = several(3, outliers=rules)
    latency_s = [0.5]

    async def slow(_call: object) -> InferResponse:
        clock.advance(latency_s[0])
        return REPLY

    async def fast(_call: object) -> InferResponse:
        clock.advance(0.01)
        return REPLY

    for service in services:
        service._always = fast
    services[0]._always = slow
    health = endpoints.endpoints[0].health
    await send_calls(endpoints, 12)
    assert 1 == health.ejections
    clock.advance(1)
    endpoints.endpoints[0].probed(ready=True)
    assert not health.is_available(clock())
    clock.advance(5)
    services[0]._always = lambda _call: FakeStream([REPLY])
    async for _item in await endpoints._call(
        StreamInferRequest(request=CALL), endpoints.endpoints[0]
    ):
        pass
    assert (1, False) == (health.ejections, health.ejected_until is None)
    services[0]._always = slow
    await send_calls(endpoints, 3)
    assert 2 == health.ejections
    latency_s[0] = 0.02
    clock.advance(10)
    await send_calls(endpoints, 3)
    assert health.ejected_until is None
