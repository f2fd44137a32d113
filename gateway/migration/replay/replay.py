"""Sends recorded calls to a server, when they are due, and compares the replies.

Replay is open loop: a call goes out at its time, however late earlier replies are. Calls of one
sequence wait for one another.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace  # noqa: TID251  # rows have no wire origin

from gateway.api.protocol import Codec
from gateway.concurrency.timeouts import Timeout, is_set_within
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import Call, InferRequest, StreamInferRequest, with_model
from gateway.ir.context import ModelRef
from gateway.ir.errors import ErrorCode, GatewayError, InvalidRequest, NotSent, Unsupported
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.unread import failure_of, is_refusal
from gateway.migration.compare.replies import Comparison, Result, compare_results
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.summary import Summary, percentile
from gateway.migration.evidence.guards import Guards
from gateway.migration.evidence.verdicts import evidence_of, uncompared_evidence
from gateway.migration.replay.forwarded import (
    can_forward,
    forwarded_call,
    forwarded_outputs,
    of_protocol,
    outputs_of_whole,
)
from gateway.migration.replay.wire_replay import recorded_message, with_recorded_types
from gateway.service import Service
from gateway.shadow.records.details import details_with_refusal
from gateway.shadow.records.records import (
    FORWARDED,
    OK,
    OLD,
    ItemRow,
    RecordedCall,
    item_rows,
    outputs_of,
)
from gateway.telemetry.log.error_texts import error_text

CONCURRENCY: Final = 64
"""Calls in flight of a replay without a pace."""
_OPTIONS: Final = "options of its server, such as `dialect`, are those of --compare FILE#NAME"
LATE_S: Final = 0.01
"""A schedule whose 99th percentile is later than this is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to send the calls.

    Attributes:
        speed: Multiple of the recorded pace; None for as fast as possible.
        rate: Calls per second, instead of a pace; None for no rate.
        concurrency: Calls in flight; None for any number at a pace or rate, else 64.
        limit: Number of calls to send; None for all.
        timeout_s: The longest time of each call.
        models: Other names for models, by their recorded names.
        is_wire: Whether the server gets all recorded messages as they are.
    """

    speed: float | None = None
    rate: float | None = None
    concurrency: int | None = None
    limit: int | None = None
    timeout_s: float = 60.0
    models: Mapping[str, ModelRef] = field(default_factory=dict)
    is_wire: bool = False


@dataclass(slots=True)
class ReplayReport:
    """The outcome of a replay.

    Attributes:
        sent: Calls that were sent.
        failed: Calls that the server did not receive.
        left_out: Calls that were not sent, by reason.
        uncompared: Sent calls without recorded outputs to compare with.
        unreadable: Sent calls whose recorded or new outputs cannot be read, by reason.
        seconds: Duration.
        lags_s: How late each call was sent.
        stopped: Whether it was interrupted.
    """

    summary: Summary = field(default_factory=Summary)
    sent: int = 0
    failed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    uncompared: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    stopped: bool = False

    @property
    def lag_p99_s(self) -> float:
        """The 99th percentile of the lag."""
        return percentile(self.lags_s, 0.99) if self.lags_s else 0.0


class ReplayOutcome(Struct, frozen=True):
    """What a server made of a call.

    Attributes:
        error: The text of the error; "" for none.
        shown_error: The same as the log may show it.
        times_s: When each reply came, since the start.
        is_unsent: Whether the server did not receive the call.
    """

    result: Result
    seconds: float
    error: str = ""
    shown_error: str = ""
    times_s: tuple[float, ...] = ()
    is_unsent: bool = False


OnDone = Callable[[RecordedCall, ReplayOutcome, Comparison | None], None]
"""Called for each call that was sent, in the order of the replies."""


class Replay:
    """Sends calls to one server, or to two and compares these.

    Args:
        service: The server.
        options: How to send the calls.
        rules: Returns the rules of a model's outputs.
        reference: The other server; None to compare with the recorded replies.
        codec: That of *service*, which gets the messages of calls that only servers of its form
            read; None leaves them out.
        on_done: Called for each call.
        guards: Get each comparison; None for no guards.
    """

    def __init__(
        self,
        service: Service,
        options: ReplayOptions,
        rules: OutputRules,
        *,
        reference: Service | None = None,
        codec: Codec[Any, Any] | None = None,
        on_done: OnDone | None = None,
        guards: Guards | None = None,
    ) -> None:
        self._service = service
        self._wire = codec if options.is_wire else None
        self._codec = codec if reference is None else None
        self._options = options
        self._rules = rules
        self._reference = reference
        self._on_done = on_done
        self._guards = guards
        self.report = ReplayReport()
        self._stop = asyncio.Event()
        self._started = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        # The last call of each sequence; its result says whether the next one may follow.
        self._sequences: dict[str, asyncio.Task[None]] = {}
        self._failed_sequences: set[str] = set()
        self._error: BaseException | None = None

    def stop(self) -> None:
        """Stop sending calls."""
        self.report.stopped = True
        self._stop.set()

    async def run(self, calls: Iterator[RecordedCall]) -> ReplayReport:
        """Send *calls*, ordered by time, and return the report when all have replies.

        Raises what `on_done` raised.
        """
        self._started = monotonic()
        paced = self._options.speed is not None or self._options.rate is not None
        limit = self._options.concurrency or (None if paced else CONCURRENCY)
        slots = None if limit is None else asyncio.Semaphore(limit)
        try:
            await self._send_all(calls, slots)
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            self.report.seconds = monotonic() - self._started
        if self._error is not None:
            raise self._error
        return self.report

    async def _send_all(
        self, calls: Iterator[RecordedCall], slots: asyncio.Semaphore | None
    ) -> None:
        first_us: int | None = None
        number = 0
        for found in calls:
            codec = self._codec
            record = of_protocol(found, codec.name) if codec and codec.whole else found
            if self._stop.is_set() or number == self._options.limit:
                return
            if record.missing and not can_forward(record, self._codec):
                self.report.left_out[record.missing] += 1
                self.report.summary.forwarded += record.is_forwarded
                if not record.call.kind:
                    self._add_refused(record)
                continue
            first_us = record.call.at_us if first_us is None else first_us
            due = self._due(record.call.at_us - first_us, number)
            if due is not None:
                await self._sleep_until(due)
            if slots is not None:
                await slots.acquire()
            if self._stop.is_set():
                return
            number += 1
            self._start(record, due, slots)
            if due is None and not number % CONCURRENCY:
                await asyncio.sleep(0)

    def _due(self, offset_us: int, number: int) -> float | None:
        if self._options.rate is not None:
            return self._started + number / self._options.rate
        if self._options.speed is None:
            return None
        return self._started + offset_us / 1e6 / self._options.speed

    async def _sleep_until(self, due: float) -> None:
        """Wait until *due*, or until `stop`."""
        delay = due - monotonic()
        if delay > 0:
            await is_set_within(self._stop, delay)
        else:
            await asyncio.sleep(0)

    def _start(
        self, record: RecordedCall, due: float | None, slots: asyncio.Semaphore | None
    ) -> None:
        key = sequence_key(record)
        before = None if key is None else self._sequences.get(key)
        task = asyncio.create_task(self._send(record, due, key, before))
        if key is not None:
            self._sequences[key] = task
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        if slots is not None:
            task.add_done_callback(lambda _: slots.release())

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
            self._stop.set()

    async def _send(
        self,
        record: RecordedCall,
        due: float | None,
        key: str | None,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
            due = None  # its time is that of the reply before it
        if key is not None and _starts_sequence(record):
            self._failed_sequences.discard(key)
        if key in self._failed_sequences:
            self.report.left_out["an earlier call of its sequence failed"] += 1
            return
        if due is not None:
            self.report.lags_s.append(monotonic() - due)
        try:
            request = self._request(record)
        except GatewayError as error:
            self.report.left_out[error.message[:200]] += 1
            return
        self.report.sent += 1
        kind = record.call.kind
        timeout_s = self._options.timeout_s
        others: list[ReplayOutcome] = []
        if self._reference is None:  # `gather` would make another task
            new = await ask(self._service, request, kind, timeout_s)
        else:
            new, *others = await asyncio.gather(
                *(ask(each, request, kind, timeout_s) for each in (self._service, self._reference))
            )
        self.report.failed += new.is_unsent
        if new.result.error is not None and key is not None:
            self._failed_sequences.add(key)
        self._compare(record, new, others[0] if others else None)

    def _add_refused(self, record: RecordedCall) -> None:
        """Count a request that the gateway could not read, so that no server can get it."""
        found = Result(error=record.error_code, is_refused=True)
        outcome = ReplayOutcome(found, record.call.took_us / 1e6, record.call.error)
        self._compare(record, outcome, outcome)

    def _request(self, record: RecordedCall) -> Call[Any]:
        if record.is_forwarded:
            assert self._codec is not None  # noqa: S101  # `can_forward`
            try:
                whole = forwarded_call(record, self._codec)
            except GatewayError as error:
                raise InvalidRequest(f"{error.message} ({_OPTIONS})") from error
            model = self._options.models.get(record.call.model)
            return whole if model is None else with_model(whole, model)
        if self._wire is not None:
            call = recorded_message(record, self._wire)
            if not isinstance(call, InferRequest | StreamInferRequest):
                raise Unsupported(f"{type(call).__name__} is not an inference")
            request = call.request if isinstance(call, StreamInferRequest) else call
            return request.with_context(origin=call.context.origin, needs=call.context.needs)
        request = record.request()
        model = self._options.models.get(record.call.model)
        return request if model is None else request.changed(model=model)

    def _compare(
        self, record: RecordedCall, new: ReplayOutcome, reference: ReplayOutcome | None
    ) -> None:
        comparison: Comparison | None = None
        old: Result | None = None
        try:
            old = recorded_result(record) if reference is None else reference.result
            if old is None and new.result.error is not None:
                old = Result()  # it had a reply, of which no elements are recorded
            if old is not None:
                result = new.result if self._wire is None else with_recorded_types(new.result, old)
                comparison = compare(record, old, result, self._rules)
        except GatewayError as error:
            self.report.unreadable[error.message[:200]] += 1
            self.report.summary.unreadable += 1
        else:
            self.report.uncompared += old is None
            self.report.summary.uncompared += old is None
        at_s = record.call.at_us / 1e6
        found = uncompared_evidence(at_s)
        if old is not None and comparison is not None:
            old_s = record.call.took_us / 1e6 if reference is None else reference.seconds
            found = evidence_of(old, new.result, comparison, (old_s, new.seconds), at_s)
            error_text = new.error or record.call.error
            self.report.summary.add(record.id, comparison, found.times_s, error_text)
        if self._guards is not None:
            self._guards.add(found)
        if self._on_done is not None:
            self._on_done(record, new, comparison)


def compare(record: RecordedCall, old: Result, new: Result, rules: OutputRules) -> Comparison:
    """Compare two results of a recorded call.

    Raises:
        InvalidTensor: The elements of an output do not match its datatype.
    """
    return compare_results(old, new, rules, classes=record.class_outputs)


def recorded_result(record: RecordedCall) -> Result | None:
    """Return the recorded result of a call; None if its outputs are not recorded.

    Raises:
        GatewayError: The record is malformed.
    """
    failed = next((each.code for each in record.items if each.code != OK), None)
    if failed is not None:  # a reply of a stream may be an error
        return Result(error=ErrorCode(failed))
    if record.error_code is not None:
        return Result(error=record.error_code, is_refused=record.is_refused)
    if record.is_forwarded and not any(each.side == OLD for each in record.tensors):
        items = forwarded_outputs(record)
        return None if items is None else Result(items)
    outputs = record.outputs()
    return None if outputs is None else Result(outputs)


async def ask(
    service: Service,
    request: Call[Any],
    kind: str,
    timeout_s: float,
    most_items: int | None = None,
) -> ReplayOutcome:
    """Call a server, and return its result; an error is a result too.

    Args:
        service: The server.
        request: The call, that of the stream, or one that is sent as it came.
        kind: That of the recorded call: how it is sent.
        timeout_s: Longest time.
        most_items: Replies of a stream after which it is closed; None for all.
    """
    started = monotonic()
    call = request.with_deadline(started + timeout_s)
    replies: list[Any] = []
    times: list[float] = []
    answered: GatewayError | None = None
    try:
        with Timeout(timeout_s + 1):
            if kind == "StreamInferRequest":
                assert isinstance(call, InferRequest)  # noqa: S101  # that of the stream
                call = StreamInferRequest(model=call.model, context=call.context, request=call)
            if isinstance(call, StreamInferRequest):
                stream = await service(call)
                try:
                    async for item in stream:
                        answered = failure_of(item)
                        if answered is not None:
                            raise answered
                        times.append(monotonic() - started)
                        replies.append(item)
                        if len(replies) == most_items:
                            break
                finally:
                    await close_stream(stream)
            else:
                replies.append(await service(call))
                times.append(monotonic() - started)
        took_s = monotonic() - started
        if kind == FORWARDED:  # JSON of any size must not delay other calls
            items = await asyncio.to_thread(_outputs_of_whole, call, replies)
        else:
            items = [outputs_of(each) for each in replies]
    except GatewayError as error:
        texts = error.message, error_text(error)
        is_refused = error is not answered and is_refusal(error)
        result = Result(error=error.code, is_refused=is_refused)
        is_unsent = isinstance(error, NotSent)
        return ReplayOutcome(result, monotonic() - started, *texts, is_unsent=is_unsent)
    except TimeoutError:
        result, text = Result(error=ErrorCode.DEADLINE_EXCEEDED), f"no reply in {timeout_s:g} s"
        return ReplayOutcome(result, monotonic() - started, text, text)
    return ReplayOutcome(Result(tuple(items)), took_s, times_s=tuple(times))


def _outputs_of_whole(call: Call[Any], replies: Sequence[Any]) -> list[tuple[Tensor, ...]]:
    return [outputs_of_whole(call, each) for each in replies]


def replayed_call(record: RecordedCall, outcome: ReplayOutcome, target: str) -> RecordedCall:
    """Return *record* with the result of a replay in the place of the recorded one."""
    error = outcome.result.error
    call = replace(
        record.call,
        took_us=round(outcome.seconds * 1e6),
        target=target,
        code=OK if error is None else error.value,
        error=outcome.error,
        details=details_with_refusal(record.call.details, outcome.result.is_refused),
    )
    items = [ItemRow(number, round(at * 1e6), OK) for number, at in enumerate(outcome.times_s)]
    tensors = [each for each in record.tensors if each.side != OLD]
    tensors += item_rows(outcome.result.items, OLD)
    return RecordedCall(call, tensors, items)


def sequence_key(record: RecordedCall) -> str | None:
    """Return what the calls of a sequence have in common; None for a call without one."""
    sequence = record.call.sequence
    return None if sequence is None else f"{record.call.model}|{sequence.split(',')[0]}"


def _starts_sequence(record: RecordedCall) -> bool:
    """Return whether another sequence begins, which may have the id of an earlier one."""
    sequence = record.call.sequence
    return sequence is not None and bool(json.loads(sequence)[1])
