"""Mirror: puts the sampled calls of a migration to the other target, and compares the replies.

It runs in the shadow process. No client waits for it. Each call that arrives has one result: an
outcome, or a reason why it was skipped or dropped; its serving process learns it.
"""

import asyncio
import secrets
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import structlog
from msgspec import Struct, field

from gateway.api.protocol import Codec
from gateway.concurrency.background import end_tasks
from gateway.concurrency.offload import run_bounded
from gateway.concurrency.timeouts import is_set_within
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, InferRequest, ModelMetadataRequest
from gateway.ir.context import Client, Context, ModelRef, Need
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.identity import Identity
from gateway.ir.metadata import ModelMetadata
from gateway.migration.captures.sampling import CALL_BYTES
from gateway.migration.compare.metadata_differences import metadata_differences, model_identity
from gateway.migration.compare.output_rules import rules_of
from gateway.migration.compare.replies import Comparison, Result, compare_results
from gateway.migration.compare.tensors import Outcome
from gateway.migration.evidence.counts import MigrationEvidence, ShadowedCall
from gateway.migration.evidence.kept_samples import ErrorTexts, KeptSamples, kept_sample
from gateway.migration.evidence.verdicts import evidence_of
from gateway.migration.mirror.targets import LONGEST_S, NEW, OLD, shadow_route
from gateway.migration.package_rules import named_rule
from gateway.migration.replay.forwarded import can_forward, forwarded_call, with_outputs
from gateway.migration.replay.replay import ReplayOutcome, ask, recorded_result
from gateway.migration.targets import LiveMigration
from gateway.service import Service
from gateway.shadow.draw import sequence_key
from gateway.shadow.packets import Sender
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import FORWARDED, OK, RecordedCall
from gateway.shadow.records.transfer import Confirmation, SampleMessage, ShadowRequest
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.telemetry.log.error_texts import brief_text, error_text

log = structlog.get_logger(__name__)

_MIB: Final = 1 << 20
QUEUE_BYTES: Final = 256 * _MIB
"""Calls that wait in the shadow process."""
_QUEUE_CALLS: Final = 1024
_SHORTEST_S: Final = 1.0
_MAX_SEQUENCES: Final = 4096
_CONFIRM_S: Final = 0.02
# Calls of one sequence come from several serving processes, in any order. Each waits so long for
# those that began before it.
_ORDER_S: Final = 0.2
_METADATA_S: Final = 300.0
_MAX_MODELS: Final = 32
# The gateway writes most of their texts itself.
# A larger comparison would delay the replies that are being timed.
_INLINE_BYTES: Final = 256 * 1024

Confirm = Callable[[int, Confirmation], None]


class _ArrivedCall(Struct):
    """A call that has arrived.

    Attributes:
        key: The client, the model and the id of its sequence; "" outside a sequence.
        sequence: The one that it belongs to, once it may start; None outside a sequence.
    """

    sender: Sender
    number: int
    size: int
    record: RecordedCall
    shadow: ShadowRequest
    request: InferRequest
    side: str
    key: str = ""
    sequence: "_MirroredSequence | None" = None


class _MirroredSequence(Struct):
    """A sequence whose calls go to one target in their order.

    Attributes:
        side: The target that replies to the client.
        is_busy: A call of it is in progress.
        waiting: The calls after it; another sequence with the same id may begin among them.
        has_failed: A call of it has no comparison, so the later ones have none either.
        last_us: Start of the last call.
    """

    side: str
    is_busy: bool = False
    waiting: deque[_ArrivedCall] = field(default_factory=deque)
    has_failed: bool = False
    last_us: int = 0


class _CallResult(Struct, frozen=True):
    """What became of a call: its outcome, or why it has none."""

    outcome: str = ""
    skipped: str = ""
    lost: str = ""


class _ResultLedger:
    """The results of one sender's calls, which are confirmed in their order."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._results: dict[int, _CallResult | None] = {}

    def expect(self, number: int) -> None:
        self._results[number] = None

    def finish(self, number: int, result: _CallResult) -> None:
        self._results[number] = result

    def confirmation(self) -> Confirmation | None:
        """Return the results up to the first call without one; None for no result."""
        found: Confirmation | None = None
        while self._results:
            number = next(iter(self._results))
            result = self._results[number]
            if result is None:
                break
            del self._results[number]
            found = found or Confirmation(epoch=self._epoch)
            found.done = number
            found.recorded += bool(result.outcome)
            for name, counts in (
                (result.outcome, found.outcomes),
                (result.skipped, found.skipped),
                (result.lost, found.lost),
            ):
                if name:
                    counts[name] = counts.get(name, 0) + 1
        return found


class Mirror:
    """The shadow calls of one migration.

    Args:
        migration: The migration.
        services: The old and the new target, by "old" and "new".
        privacy: Which elements of kept calls may be shown.
        confirm: Receives the results for a serving process.
        on_change: Called after a comparison that differs, so that the evidence is sent soon.
        models: Models of the route that are known before any call.
        codecs: Those of the targets that get forwarded calls, by "old" and "new".
    """

    def __init__(
        self,
        migration: LiveMigration,
        services: Mapping[str, Service],
        privacy: Privacy,
        confirm: Confirm,
        on_change: Callable[[], None] = lambda: None,
        models: Iterable[str] = (),
        codecs: Mapping[str, Codec[Any, Any]] = MappingProxyType({}),
    ) -> None:
        self._migration = migration
        self._config = migration.config
        self._services = services
        self._codecs = codecs
        self._privacy = privacy
        self._confirm = confirm
        self._on_change = on_change
        self._rules = rules_of(migration.config.compare, named_rule)
        self._sides = {migration.old_name: OLD, migration.new_name: NEW}
        # It begins with a letter, so that no id of a sample looks like a number.
        self._prefix = f"{secrets.choice('abcdef')}{secrets.token_hex(3)[1:]}"
        self._numbers = 0
        self._ledgers: dict[Sender, _ResultLedger] = {}
        self._is_confirming = False
        self._waiting: deque[_ArrivedCall] = deque()
        self._waiting_calls = self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._sequences: BoundedDict[str, _MirroredSequence] = BoundedDict(_MAX_SEQUENCES)
        # Calls of a sequence that wait for earlier ones, by their start.
        self._early: dict[str, list[_ArrivedCall]] = {}
        self._next_event_s = 0.0
        # In the order of their first call.
        self._models: BoundedDict[ModelRef, None] = BoundedDict(_MAX_MODELS)
        for name in models:
            self._models[ModelRef(name)] = None
        self._new_model = asyncio.Event()
        self.evidence = self._new_evidence()
        self.samples = KeptSamples(privacy)

    def reset(self) -> None:
        """Start the evidence again; calls in progress count in the new one."""
        pending = self.evidence.in_flight
        self.evidence = self._new_evidence()
        self.samples = KeptSamples(self._privacy)
        for _ in range(pending):
            self.evidence.count_arrival()
        self._new_model.set()  # the new evidence knows no metadata

    def _new_evidence(self) -> MigrationEvidence:
        has_noise = self._config.noise is not None
        return MigrationEvidence(
            self._migration.name, self._config.guards, _now_us(), has_noise=has_noise
        )

    @property
    def name(self) -> str:
        """Of the migration."""
        return self._migration.name

    def document(self) -> dict[str, Any]:
        """Return the evidence as JSON values."""
        return {**self.evidence.document(_now_us()), "samples": self.samples.list()}

    @property
    def has_room(self) -> bool:
        """Whether further calls may arrive."""
        return self._waiting_calls < _QUEUE_CALLS and self._waiting_bytes < QUEUE_BYTES

    def put(self, sender: Sender, number: int, message: SampleMessage, size: int) -> None:
        """Take a message; never waits and never raises.

        Args:
            sender: Gets the result.
            number: Of the message; it is confirmed with this number.
            message: The call.
            size: The size of the message in bytes.
        """
        if message.skipped or message.dropped:
            self.evidence.report(message.skipped, message.dropped)
        ledger = self._ledgers.get(sender)
        if ledger is None:
            # An earlier process of the same socket sends nothing more.
            self._ledgers = {
                key: each for key, each in self._ledgers.items() if key[0] != sender[0]
            }
            ledger = self._ledgers[sender] = _ResultLedger(sender[1])
        ledger.expect(number)
        record, shadow = message.record, message.shadow or ShadowRequest()
        for broken in shadow.broken:
            self._break_sequence(broken)
        if record is None:
            ledger.finish(number, _CallResult())
            self._confirm_soon()
            return
        self.evidence.count_arrival()
        side = self._sides.get(record.call.target)
        try:
            request = record.request()
            client = Client(identity=Identity(shadow.client))
            context = request.context.changed(metadata=shadow.metadata, client=client)
            request = request.changed(context=context)
        except GatewayError:
            self._finish(sender, number, _CallResult(skipped="invalid"))
            return
        is_forwarded = record.is_forwarded
        if side is None or (is_forwarded and not can_forward(record, self._codecs.get(side))):
            reason = "other_target" if side is None else "forwarded"
            self._finish(sender, number, _CallResult(skipped=reason))
            return
        model = request.model
        if model is not None and model not in self._models and len(self._models) < _MAX_MODELS:
            self._models[model] = None
            self._new_model.set()
        key = sequence_key(request, shadow.client)
        entry = _ArrivedCall(sender, number, size, record, shadow, request, side, key)
        self._waiting_calls += 1
        self._waiting_bytes += size + CALL_BYTES
        if key:
            insort(self._early.setdefault(key, []), entry, key=_start_us)
            asyncio.get_running_loop().call_later(_ORDER_S, self._order, key, _start_us(entry))
        else:
            self._waiting.append(entry)
            self._start_waiting()

    async def close(self, timeout_s: float) -> None:
        """Wait for calls in progress for at most *timeout_s*, and drop the others; idempotent."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        await end_tasks(*self._tasks)
        self._send_confirmations()

    async def watch_metadata(self) -> None:
        """Compare the metadata of both targets at once and every 5 minutes, until it is cancelled.

        It concerns the models that the configuration names, and those of the calls so far.
        """
        known: tuple[str, ...] = ()
        while True:
            self._new_model.clear()
            found: list[str] = []
            for model in tuple(self._models):
                found += await self._metadata_differences(model)
            self.evidence.set_metadata(tuple(found))
            if tuple(found) != known:
                known = tuple(found)
                log.warning("metadata differs", migration=self.name, differences=found)
            if not await is_set_within(self._new_model, _METADATA_S):
                continue

    async def _metadata_differences(self, model: ModelRef) -> list[str]:
        """Return the differences of one model; a target that does not tell has none."""
        replies = await _metadata_of(self._services, model)
        found = [each for each in replies if isinstance(each, ModelMetadata)]
        for side, reply in zip((OLD, NEW), replies, strict=True):
            if isinstance(reply, ModelMetadata):
                self.evidence.set_model(str(model), side, model_identity(reply))
        if len(found) < len(replies):
            reasons = [each for each in replies if isinstance(each, BaseException)]
            log.info("metadata not compared", migration=self.name, reason=error_text(reasons[0]))
            return []
        # What identifies a model does not depend on whether its configuration is available.
        completed = await _metadata_of(self._services, model, frozenset({Need.BATCHING}))
        whole = [each for each in completed if isinstance(each, ModelMetadata)]
        found = whole if len(whole) == len(completed) else found
        return [f"model {str(model)!r}: {text}" for text in metadata_differences(*found)]

    # -- order of the calls

    def _order(self, key: str, until_us: int) -> None:
        """Let the calls of a sequence that began until then join it, in the order of their starts.

        Calls that began earlier and have not come yet are late.
        """
        early = self._early.get(key, [])
        while early and _start_us(early[0]) <= until_us:
            entry = early.pop(0)
            if self._joins_sequence(entry):
                self._waiting.append(entry)
        if not early:
            self._early.pop(key, None)
        self._start_waiting()

    def _break_sequence(self, key: str) -> None:
        """Compare no call that began so far of a sequence: a serving process has lost one of it."""
        found = self._sequences.setdefault(key, _MirroredSequence(""))
        found.has_failed, found.last_us = True, _now_us()

    def _joins_sequence(self, entry: _ArrivedCall) -> bool:
        """Return whether a call may start now: no call of its sequence is in progress."""
        found = self._sequences.get(entry.key)
        if found is None:  # its start was not seen
            found = _MirroredSequence(entry.side, has_failed=True)
        if found.is_busy:
            found.waiting.append(entry)
            return False
        self._sequences[entry.key] = found
        return self._continues(found, entry)

    def _continues(self, found: _MirroredSequence, entry: _ArrivedCall) -> bool:
        """Let a call be the one in progress; return False for one that is skipped."""
        if _start_us(entry) < found.last_us:  # the other target got a call after it
            found.has_failed = True
        elif _starts(entry):
            found.side, found.has_failed = entry.side, False
        found.last_us = max(found.last_us, _start_us(entry))
        if found.side != entry.side:
            found.has_failed = True
        if found.has_failed:
            self._leave_queue(entry)
            self._finish(entry.sender, entry.number, _CallResult(skipped="sequence"))
            return False
        entry.sequence, found.is_busy = found, True
        return True

    def _start_waiting(self) -> None:
        while self._waiting and len(self._tasks) < self._config.mirror.in_flight:
            entry = self._waiting.popleft()
            self._leave_queue(entry)
            task = asyncio.create_task(self._run(entry))
            self._tasks.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start_waiting()

    def _leave_queue(self, entry: _ArrivedCall) -> None:
        self._waiting_calls -= 1
        self._waiting_bytes -= entry.size + CALL_BYTES

    def _continue_sequence(self, entry: _ArrivedCall, result: _CallResult) -> None:
        """Start the next call of a sequence; skip its rest if this one has no comparison."""
        found = entry.sequence
        if found is None:
            return
        found.is_busy = False
        kinds = (Outcome.NEW_ERROR, Outcome.OLD_ERROR, Outcome.TIMEOUT, Outcome.REFUSED)
        failed = {each.value for each in kinds}
        if not result.outcome or result.outcome in failed:
            found.has_failed = True
        while found.waiting:
            later = found.waiting.popleft()
            if self._continues(found, later):
                self._waiting.appendleft(later)
                return
        has_ended = entry.request.sequence is not None and entry.request.sequence.end
        if has_ended and self._sequences.get(entry.key) is found:
            del self._sequences[entry.key]

    # -- one call

    async def _run(self, entry: _ArrivedCall) -> None:
        result = _CallResult(lost="shadow_down")  # of a call that is cancelled at the end
        old: Result | None = None
        try:
            result, old = await self._compared(entry)
        except GatewayError:
            result = _CallResult(skipped="invalid")
        except Exception:  # a defect costs one sample
            log.exception("call not compared", migration=self.name)
            result = _CallResult(lost="internal")
        finally:
            self._finish(entry.sender, entry.number, result)
            self._continue_sequence(entry, result)
        if old is not None and entry.shadow.noise:
            await self._measure_noise(entry, old)

    async def _compared(self, entry: _ArrivedCall) -> tuple[_CallResult, Result | None]:
        """Ask the other target, and compare; return the outcome and the result of the old one.

        Raises:
            GatewayError: A tensor cannot be read.
        """
        if entry.record.is_forwarded and entry.size > _INLINE_BYTES:
            recorded, most_items = await asyncio.to_thread(_client_result, entry.record)
        else:
            recorded, most_items = _client_result(entry.record)
        if recorded is None:
            return _CallResult(skipped="cancelled"), None
        other_side = NEW if entry.side == OLD else OLD
        other, upstream_s = await self._ask(other_side, entry, most_items)
        old, new = recorded, other.result
        if entry.side == NEW:
            old, new = new, old
        try:
            comparison, is_readable = await self._compare(entry, old, new), True
        except GatewayError as error:
            reason = f"a reply cannot be read: {error_text(error)}"
            comparison, is_readable = Comparison(Outcome.STRUCTURE, reason), False
        texts = self._error_texts(entry, other)
        seconds = entry.shadow.upstream_us / 1e6, upstream_s
        call_s = entry.record.call.took_us / 1e6, other.seconds
        if entry.side == NEW:
            seconds = seconds[1], seconds[0]
        self._numbers += 1
        sample_id = f"{self._prefix}-{self._numbers:x}"
        at_us = entry.record.call.at_us
        # A kept reply, a stream or a repeated call has no time.
        times_s = seconds if min(seconds) > 0 else None
        found = evidence_of(old, new, comparison, times_s, monotonic())
        self.evidence.add(ShadowedCall(sample_id, at_us, found, comparison, texts.shown))
        if is_readable and self.samples.wants(comparison):
            record = entry.record
            if record.is_forwarded:
                record = with_outputs(record, recorded.items)
            kept = kept_sample(
                sample_id, record, entry.side, other.result, comparison, call_s, texts
            )
            self.samples.add(kept)
        if comparison.outcome is not Outcome.MATCH:
            self._report(sample_id, entry, comparison, texts.shown)
        return _CallResult(outcome=comparison.outcome.value), old if most_items is None else None

    def _error_texts(self, entry: _ArrivedCall, other: ReplayOutcome) -> ErrorTexts:
        """Return the texts of the errors of both targets.

        A sample is recorded payload; all else is read where the log is.
        """
        client = entry.record.call
        shown = entry.shadow.error or brief_text(client.error), other.shown_error
        kept = (client.error, other.error) if self._privacy.payload == "full" else shown
        if entry.side == NEW:
            kept, shown = kept[::-1], shown[::-1]
        return ErrorTexts(*kept, shown[1] or shown[0])

    async def _ask(
        self, side: str, entry: _ArrivedCall, most_items: int | None
    ) -> tuple[ReplayOutcome, float]:
        """Return the result of a target, and its time from the request to the reply or 0."""
        took_s = entry.record.call.took_us / 1e6
        timeout_s = self._config.mirror.timeout
        if timeout_s is None:
            timeout_s = min(max(2 * took_s, _SHORTEST_S), LONGEST_S)
        path = CallPath(route=shadow_route(self.name, side))
        CALL_PATH.set(path)  # each call has its own task
        kind = entry.record.call.kind
        call: Call[Any] = entry.request
        if kind == FORWARDED:
            context = call.context
            call = await run_bounded(forwarded_call, entry.record, self._codecs[side])
            call = call.with_context(metadata=context.metadata, client=context.client)
        found = await ask(self._services[side], call, kind, timeout_s, most_items)
        return found, 0.0 if kind == "StreamInferRequest" else path.upstream_s

    async def _compare(self, entry: _ArrivedCall, old: Result, new: Result) -> Comparison:
        classes = entry.record.class_outputs
        streams = self._config.mirror.streams
        if entry.size <= _INLINE_BYTES:
            return compare_results(old, new, self._rules, classes=classes, streams=streams)
        return await asyncio.to_thread(
            compare_results, old, new, self._rules, classes=classes, streams=streams
        )

    async def _measure_noise(self, entry: _ArrivedCall, old: Result) -> None:
        """Ask the old target once more, and compare its two replies."""
        try:
            again, _ = await self._ask(OLD, entry, None)
            if old.error is None and again.result.error is None:
                self.evidence.add_noise(await self._compare(entry, old, again.result))
        except Exception:  # a defect costs one measurement
            log.exception("noise not measured", migration=self.name)

    def _report(
        self, sample_id: str, entry: _ArrivedCall, comparison: Comparison, error: str
    ) -> None:
        """Log a comparison that differs, once a second, without any value."""
        self._on_change()
        if monotonic() < self._next_event_s:
            return
        self._next_event_s = monotonic() + 1
        log.warning(
            "sample mismatch",
            migration=self.name,
            id=sample_id,
            request_id=entry.record.call.request_id,
            outcome=comparison.outcome.value,
            reason=error or comparison.reason,
            outputs=comparison.different_outputs[:8],
        )

    # -- results

    def _finish(self, sender: Sender, number: int, result: _CallResult) -> None:
        if result.skipped:
            self.evidence.skip(result.skipped)
        elif result.lost:
            self.evidence.drop(result.lost)
        ledger = self._ledgers.get(sender)
        if ledger is not None:
            ledger.finish(number, result)
            self._confirm_soon()

    def _confirm_soon(self) -> None:
        if not self._is_confirming:
            self._is_confirming = True
            asyncio.get_running_loop().call_later(_CONFIRM_S, self._send_confirmations)

    def _send_confirmations(self) -> None:
        self._is_confirming = False
        for (number, _), ledger in tuple(self._ledgers.items()):
            confirmation = ledger.confirmation()
            if confirmation is not None:
                self._confirm(number, confirmation)


def _starts(entry: _ArrivedCall) -> bool:
    """Return whether a sequence starts with a call."""
    return entry.request.sequence is not None and entry.request.sequence.start


def _start_us(entry: _ArrivedCall) -> int:
    return entry.record.call.at_us


def _client_result(record: RecordedCall) -> tuple[Result | None, int | None]:
    """Return what the client got, and how many replies are compared; None and None for nothing.

    A client that left early got some replies of a stream: so many are compared.

    Raises:
        GatewayError: The record is malformed.
    """
    has_failed = any(each.code != OK for each in record.items)
    if record.error_code is ErrorCode.CANCELLED and not has_failed:
        outputs = record.outputs()
        return (Result(outputs), len(outputs)) if outputs else (None, None)
    return recorded_result(record), None


def _now_us() -> int:
    return round(time.time() * 1e6)  # noqa: TID251  # a time that people read


async def _metadata_of(
    services: Mapping[str, Service], model: ModelRef, needs: frozenset[Need] = frozenset()
) -> list[ModelMetadata | BaseException]:
    """Return what the old and the new target say of a model, or their errors."""
    context = Context(deadline=monotonic() + LONGEST_S, needs=needs)
    request = ModelMetadataRequest(model=model, context=context)
    return await asyncio.gather(
        *(services[side](request) for side in (OLD, NEW)), return_exceptions=True
    )
