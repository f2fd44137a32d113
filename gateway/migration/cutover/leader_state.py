"""LeaderState: the state of one cut-over as its leader keeps it, and what its evidence shows."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from gateway.api.extension import Reports
from gateway.api.start_error import reason_of
from gateway.concurrency.own_thread import on_own_thread
from gateway.migration.cutover.files import PendingRollback, StateConflict, UnusableState
from gateway.migration.cutover.interfaces import (
    ArrivedEvidence,
    EvidenceKeeper,
    ReplicaReports,
    StateStore,
)
from gateway.migration.cutover.reported import (
    counts_of,
    guard_verdicts,
    merged_verdicts,
    models_text,
    most_frequent,
    reasons_of,
    shared_evidence,
)
from gateway.migration.cutover.shifts import tripped_guard
from gateway.migration.cutover.states import IDLE_PHASES, Phase
from gateway.migration.cutover.steps import (
    COMMANDS,
    CutoverEvent,
    CutoverEvidence,
    CutoverPlan,
    CutoverState,
    Decision,
    distrusted,
    restarted,
)

log = structlog.get_logger(__name__)

# Evidence comes once a second.
_CURRENT_S: Final = 5.0

_RESET_S: Final = 5.0

# Counts that change nothing else are written this often.
_SAVE_S: Final = 5.0

ERROR_EVENTS: Final = frozenset({"cutover tripped", "cutover state unusable"})
"""Events of cut-overs that are errors in the log."""


def _is_material(old: CutoverState, new: CutoverState) -> bool:
    """Return whether a change must be on the disk before it is used."""
    counts = {
        "baked_s": 0.0,
        "waited_s": 0.0,
        "idle_s": 0.0,
        "calls": 0,
        "failures": 0,
        "unanswered": 0,
        "compared": 0,
        "detector": (),
        "comparisons": {},
        "decided_s": None,
    }
    return replace(old, **counts) != replace(new, **counts)  # type: ignore[arg-type]


class LeaderState:
    """The state of a cut-over, with its arguments."""

    def __init__(
        self,
        plan: CutoverPlan,
        files: StateStore,
        keeper: Callable[[], EvidenceKeeper | None],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        replicas: ReplicaReports | None = None,
        pending: PendingRollback | None = None,
    ) -> None:
        self.plan = plan
        self.trips: dict[str, int] = {}
        self._files = files
        self._keeper = keeper
        self._clock = clock
        self._monotonic = monotonic
        self._replicas = replicas
        self._pending = pending
        self._lock = asyncio.Lock()
        self._evidence = CutoverEvidence(is_current=False)
        self._counts: dict[str, tuple[int, ...]] = {}
        self._compared = (0, 0)
        self._compared_total = 0
        self._reset_at_s = -_RESET_S
        self._saved_at_s = monotonic()
        self._refused_epoch = -1
        self._is_over = False
        # The attempt that an operator has rolled back here, until the gateway that leads knows it.
        self._rolled_back = self._pending_rollback()
        # Whether `state` is that of the cut-over, not the one before it has been read.
        self._is_known = False
        self.state = CutoverState()
        self.is_leader = files.lead()
        self._load()

    def _pending_rollback(self) -> int | None:
        """Return the attempt that was rolled back here before a restart; None for none."""
        try:
            return None if self._pending is None else self._pending.load()
        except (OSError, ValueError) as error:
            problem = str(error)
        log.error("cutover rollback lost", migration=self.plan.migration, reason=problem)
        return None

    def _load(self) -> None:
        """Continue with the state on the disk; with weight 0 if it cannot be used."""
        digest = self.plan.digest
        self._is_known |= self.is_leader
        try:
            found = self._files.load(digest)
        except UnusableState as error:
            self._is_known = True
            if not self.is_leader:
                # Whoever leads says so; calls stay where they are safe.
                known = self.state
                self.state = replace(
                    distrusted(str(error)), epoch=known.epoch, attempt=known.attempt
                )
                return
            self._distrust(error)
            return
        if found is None:
            return
        self._is_known = True
        if found.epoch < self.state.epoch:
            if self._refused_epoch != found.epoch:
                self._refused_epoch = found.epoch
                log.warning(
                    "cutover state refused",
                    migration=self.plan.migration,
                    reason=f"its epoch is {found.epoch}; expected {self.state.epoch} or later",
                )
            return
        self.state = restarted(found) if self.is_leader else found

    def _distrust(self, error: UnusableState) -> None:
        """Begin with weight 0: paused, or ready if nothing was under way."""
        earlier = CutoverState() if error.state is None else error.state
        if error.state is not None and earlier.phase in IDLE_PHASES:
            self.state = CutoverState(epoch=earlier.epoch + 1, attempt=earlier.attempt + 1)
            self._replace_file()
            return
        # Processes that know a later epoch must not refuse the weight 0.
        epoch = max(earlier.epoch, round(self._clock()))
        self.state = distrusted(str(error), epoch, earlier.attempt)
        self._replace_file()
        self._record(CutoverEvent("cutover state unusable", str(error)))

    def _replace_file(self) -> None:
        """Keep a file that cannot be used under another name, and write the state in use."""
        try:
            self._files.set_aside()
            self._write(self.state)
        except OSError as error:
            self._log_unwritten(error)

    def _log_unwritten(self, error: OSError) -> None:
        name = self.plan.migration
        log.error("cutover state not written", migration=name, reason=reason_of(error))

    @property
    def state_here(self) -> CutoverState:
        """The state in force here: rolled back, if the others do not know yet of the command."""
        if self._rolled_back is None or self._is_rollback_over:
            return self.state
        reason = (
            "rolled back by an operator at this gateway; the others follow when the state can be "
            f"written: {self._files.trouble or 'another gateway leads'}"
        )
        return replace(self.state, phase=Phase.ROLLING_BACK, weight=0.0, reason=reason)

    @property
    def _is_rollback_over(self) -> bool:
        """Whether a rollback made here changes nothing: it is known, or somebody has resumed."""
        is_open = self.state.phase in COMMANDS["rollback"][0]
        return self._is_known and (self._rolled_back != self.state.attempt or not is_open)

    def weight(self) -> tuple[float, int, int]:
        """Return percentage, epoch and attempt, for the serving processes."""
        state = self.state_here
        return state.weight, state.epoch, state.attempt

    def _log_unkept(self, error: OSError) -> None:
        name = self.plan.migration
        log.warning("cutover rollback not kept", migration=name, reason=reason_of(error))

    async def _forget_rollback(self) -> None:
        """All gateways know of the rollback, or somebody has resumed."""
        self._rolled_back = None
        try:
            if self._pending is not None:
                await on_own_thread(self._pending.clear)
        except OSError as error:
            self._log_unkept(error)

    async def _adopt(self, decision: Decision) -> bool:
        """Write the next state, and then use it; return False if it was made of an older one.

        If it cannot be written, only a lower weight is used.
        """
        old, new = self.state, decision.state
        if _is_material(old, new) or self._monotonic() - self._saved_at_s >= _SAVE_S:
            try:
                await on_own_thread(self._write, new)
            except StateConflict:
                self.is_leader = False
                return False
            except OSError as error:
                self._log_unwritten(error)
                if new.weight > old.weight:
                    return True
        self.state = new
        for event in decision.events:
            if event.event == "cutover tripped":
                self.trips[event.guard] = self.trips.get(event.guard, 0) + 1
            await on_own_thread(self._record, event)
        return True

    def _write(self, state: CutoverState) -> None:
        self._files.save(self.plan.digest, state)
        self._saved_at_s = self._monotonic()

    def _record(self, event: CutoverEvent) -> None:
        write = log.error if event.event in ERROR_EVENTS else log.info
        write(
            event.event,
            migration=self.plan.migration,
            text=event.text,
            step=self.state.step,
            weight=self.state.weight,
        )
        try:
            self._files.append(event, self.state, self._clock())
        except OSError as error:
            log.warning(
                "cutover event not written", migration=self.plan.migration, reason=reason_of(error)
            )

    def _read(self, reports: Reports, shared: Mapping[str, Mapping[str, Any]]) -> CutoverEvidence:
        """Return what happened since the last time, with what other gateways report."""
        name, state = self.plan.migration, self.state
        found = {
            process: None if report is None else report.get(name)
            for process, report in reports.items()
        }
        for replica, document in shared.items():
            for process, report in document["reports"].items():
                found[f"{replica}/{process}"] = report
        calls, failures, unanswered, tripped, is_applied = 0, 0, 0, None, True
        for process, report in found.items():
            if report is None or report["epoch"] < state.epoch:
                is_applied = False
            if report is not None:
                more = self._more(process, counts_of(report), is_own=process in reports)
                calls, failures = calls + more[0], failures + more[1]
                unanswered += more[2]
                tripped = tripped or tripped_guard(report, state.attempt)
        own = self._compared_since()
        self._compared_total += own.compared
        evidence = [own, *(shared_evidence(each) for each in shared.values())]
        compared = own.compared
        for replica, document in shared.items():
            found[replica] = None
            compared += self._more(replica, (document["compared"],), is_own=False)[0]
        self._counts = {key: counts for key, counts in self._counts.items() if key in found}
        return CutoverEvidence(
            calls=calls,
            failures=failures,
            unanswered=unanswered,
            compared=compared,
            guards=tuple(merged_verdicts([each.guards for each in evidence if each.is_current])),
            is_current=all(each.is_current for each in evidence),
            tripped=tripped,
            models=own.models,
            comparisons=own.comparisons,
            is_applied=is_applied,
            why=own.why,
        )

    def _more(self, source: str, counts: tuple[int, ...], *, is_own: bool) -> tuple[int, ...]:
        """Return how much the counts of a source have grown since the last time.

        Another gateway may have counted before this one led; its first counts are no growth.
        """
        before = self._counts.get(source, (0,) * len(counts) if is_own else counts)
        self._counts[source] = counts
        return tuple(max(0, now - then) for now, then in zip(counts, before, strict=True))

    def _arrived(self) -> ArrivedEvidence | None:
        """Return the latest evidence of this gateway; None if nothing compares replies."""
        keeper = self._keeper()
        return None if keeper is None else keeper.evidence.get(self.plan.migration)

    def _compared_since(self) -> CutoverEvidence:
        """Return what the comparisons of this gateway show."""
        nothing = CutoverEvidence(is_current=False)
        arrived = self._arrived()
        if arrived is None:
            return nothing
        document, now = arrived.document, self._monotonic()
        since_us = int(document["since_us"])
        compared = int(document.get("replies_compared", document["compared"]))
        if since_us / 1e6 < self.state.evidence_from_s:
            self._reset(now)
            return nothing
        before = self._compared[1] if self._compared[0] == since_us else 0
        before = before if before <= compared else 0  # another process goes on
        self._compared = since_us, compared
        return CutoverEvidence(
            compared=max(0, compared - before),
            guards=tuple(guard_verdicts(document["guards"])),
            is_current=now - arrived.at_s <= _CURRENT_S,
            models=models_text(document),
            comparisons=document.get("resume"),
            why=most_frequent(reasons_of(document)),
        )

    def _reset(self, now: float) -> None:
        keeper = self._keeper()
        if keeper is not None and now - self._reset_at_s >= _RESET_S:
            self._reset_at_s = now
            keeper.reset_evidence(self.plan.migration)
