"""One cut-over in the leading process: its state, its evidence, and what operators see of it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from gateway.api.extension import Reports
from gateway.api.start_error import reason_of
from gateway.concurrency.own_thread import on_own_thread
from gateway.migration.cutover.evidence_reader import EvidenceReader
from gateway.migration.cutover.files import PendingRollback, StateConflict, UnusableState
from gateway.migration.cutover.interfaces import (
    EvidenceKeeper,
    ReplicaReports,
    StateStore,
)
from gateway.migration.cutover.reported import (
    reasons_of,
    replies_of,
)
from gateway.migration.cutover.states import IDLE_PHASES, Phase
from gateway.migration.cutover.steps import (
    COMMANDS,
    CommandRefused,
    CutoverEvent,
    CutoverEvidence,
    CutoverPlan,
    CutoverState,
    Decision,
    answered,
    command,
    decide,
    distrusted,
    missing_conditions,
    next_text,
    restarted,
    still_done,
    verdict_of,
    verdicts,
)
from gateway.migration.evidence.verdicts import GuardVerdict, Standing

log = structlog.get_logger(__name__)

# Counts that change nothing else are written this often.
_SAVE_S: Final = 5.0

ERROR_EVENTS: Final = frozenset({"cutover tripped", "cutover state unusable"})
"""Events of cut-overs that are errors in the log."""


class LeaderCutover:
    """One cut-over.

    Args:
        plan: What it does.
        files: Its state and its log.
        keeper: Returns what has the evidence; None if nothing compares replies.
        clock: Seconds since the epoch.
        monotonic: Monotonic seconds.
        replicas: The gateways of the same cut-over; None for this one only.
        pending: Keeps a rollback for a restart while the others do not know of it; None for not.

    Attributes:
        plan: What the cut-over does.
        state: Where it stands.
        is_leader: Whether this process decides.
        trips: How often a guard took all calls from the new target, by guard.

    Raises:
        OSError: Its directory cannot be used.
    """

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
        self._clock = clock
        self._monotonic = monotonic
        self._replicas = replicas
        self._pending = pending
        self._lock = asyncio.Lock()
        self._evidence = CutoverEvidence(is_current=False)
        self._reader = EvidenceReader(plan, keeper, monotonic)
        self._saved_at_s = monotonic()
        self._refused_epoch = -1
        self._is_over = False
        # The attempt that an operator has rolled back here, until the gateway that leads knows it.
        self._rolled_back = self._pending_rollback()
        # Whether `state` is that of the cut-over, not the one before it has been read.
        self._is_known = False
        self.state = CutoverState()
        self.is_leader = files.try_lead()
        self._load()

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

    def weight(self) -> tuple[float, int, int]:
        """Return percentage, epoch and attempt, for the serving processes."""
        state = self.state_here
        return state.weight, state.epoch, state.attempt

    def resume_comparisons(self) -> None:
        """Let the guards of the comparisons continue where they were before the restart."""
        self._reader.resume(self.state)

    async def evaluate(self, reports: Reports) -> None:
        """Decide by what the serving processes report, if this process leads.

        Otherwise follow the process that does.
        """
        async with self._lock:
            if self._is_over:
                return
            shared = await on_own_thread(self._follow)
            self._evidence = evidence = self._reader.read(self.state, reports, shared)
            if self._replicas is not None:
                await on_own_thread(self._tell, reports)
            await self._pass_on_rollback(shared)
            if self.is_leader and not await self._adopt(
                decide(self.plan, self.state, evidence, self._clock())
            ):
                await on_own_thread(self._follow)
                if self.is_leader:
                    await self._adopt(decide(self.plan, self.state, evidence, self._clock()))

    async def command(self, verb: str, at_step: int | None) -> None:
        """Do what an operator wants.

        Raises:
            CommandRefused: It does not fit the state, or another gateway leads.
        """
        async with self._lock:
            if verb == "rollback" and not self.is_leader and self._can_roll_back_here():
                await self._roll_back_here()
                return
            if not self.is_leader and self._files.trouble:
                raise CommandRefused(
                    f"the cut-over of {self.plan.migration!r} is out of reach: "
                    f"{self._files.trouble}; expected the command again later"
                )
            if not self.is_leader:
                raise CommandRefused(
                    f"another gateway leads the cut-over of {self.plan.migration!r}; expected the "
                    "command there"
                )
            decision = command(
                self.plan,
                self.state,
                verb,
                self._clock(),
                at_step=at_step,
                trips=any(each.standing is Standing.TRIPS for each in self._evidence.guards),
            )
            if verb == "rollback":
                if not await self._roll_back(decision):
                    await self._roll_back_here()
                return
            before = self.state
            if not await self._adopt(decision):
                raise CommandRefused(
                    f"another gateway has changed the cut-over of {self.plan.migration!r}; "
                    "expected the command again"
                )
            if decision.state.evidence_from_s > before.evidence_from_s:
                self._evidence = replace(self._evidence, guards=(), is_current=False)

    def verdict(self) -> tuple[Standing, dict[str, Any]]:
        """Return the verdict of all guards together, and the document with each of them."""
        guards = verdicts(self.plan, self.state, self._evidence)
        standing = verdict_of(guards, self.state)
        if standing is Standing.HOLDS and self.plan.guards and not self._evidence.is_current:
            standing = Standing.UNDECIDED
        return standing, {
            "verdict": standing.value,
            "migration": self.plan.migration,
            "state": self.state.phase.value,
            "guards": [each.document() for each in guards],
        }

    def guards(self) -> tuple[GuardVerdict, ...]:
        """Return the verdict of each guard."""
        return verdicts(self.plan, self.state, self._evidence)

    def document(self) -> dict[str, Any]:
        """Return where the cut-over stands, as JSON values."""
        plan, state = self.plan, self.state_here
        missing = missing_conditions(plan, state, self._evidence)
        found = answered(state) if state.step else state.compared
        arrived = self._reader.arrived()
        return {
            "migration": plan.migration,
            "new": plan.new,
            "state": state.phase.value,
            "step": state.step,
            "steps": list(plan.steps),
            "weight": state.weight,
            "epoch": state.epoch,
            "attempt": state.attempt,
            "leads": self.is_leader,
            "bake": {"passed_s": round(state.baked_s, 3), "of_s": plan.bake_s},
            "calls": {
                "found": found,
                "of": plan.min_calls,
                "failed": state.calls - answered(state),
            },
            "guards": [each.document() for each in self.guards()],
            "replies": None if arrived is None else replies_of(arrived.document),
            "reasons": [] if arrived is None else reasons_of(arrived.document),
            "next": next_text(plan, state, missing),
            "reason": state.reason,
            "tripped": state.tripped,
            "events": self._files.events(),
        }

    async def end(self) -> None:
        """Let another gateway lead, after a decision in progress; idempotent."""
        async with self._lock:
            self._is_over = True
            await on_own_thread(self.close)

    def close(self) -> None:
        """Let another gateway lead; idempotent."""
        if self._rolled_back is not None:
            log.error(
                "cutover rollback not written",
                migration=self.plan.migration,
                reason=self._files.trouble or "another gateway leads",
            )
        if self._replicas is not None:
            self._replicas.remove()
        if self.is_leader:
            self.is_leader = False
            self._save(self.state)
        self._files.release()

    def _load(self) -> None:
        """Continue with the state on the disk; with weight 0 if it cannot be used."""
        digest = self.plan.digest
        self._is_known |= self.is_leader
        try:
            found = self._files.load(digest)
        except UnusableState as error:
            self._is_known = True
            done = still_done(self.plan, error.state)
            if done is not None:
                self.state = done
                if self.is_leader:
                    self._save(done)
                return
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
        """Begin with weight 0: paused, or ready if nothing was under way or another was done."""
        earlier = CutoverState() if error.state is None else error.state
        if error.state is not None and earlier.phase in IDLE_PHASES | {Phase.DONE}:
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

    def _pending_rollback(self) -> int | None:
        """Return the attempt that was rolled back here before a restart; None for none."""
        try:
            return None if self._pending is None else self._pending.load()
        except (OSError, ValueError) as error:
            problem = str(error)
        log.error("cutover rollback lost", migration=self.plan.migration, reason=problem)
        return None

    def _follow(self) -> dict[str, dict[str, Any]]:
        """Find out who leads and which state is in force; return the reports of other gateways.

        They are read by the gateway that leads. If they are out of reach it decides nothing.
        """
        led, self.is_leader = self.is_leader, self._files.try_lead()
        if not (led and self.is_leader):
            self._load()
        shared: dict[str, dict[str, Any]] = {}
        if self._replicas is not None and self.is_leader:
            try:
                shared = dict(self._replicas.others())
            except OSError:  # a warning has said so
                self.is_leader = False
        if led != self.is_leader:
            if self.is_leader:
                log.info("cutover leads", migration=self.plan.migration)
            else:
                log.info("cutover leads no more", migration=self.plan.migration)
        return shared

    def _tell(self, reports: Reports) -> None:
        """Tell the gateway that leads what it needs to know of this one."""
        assert self._replicas is not None  # noqa: S101  # the caller looks
        name = self.plan.migration
        document = {
            "reports": {
                process: found[name]
                for process, found in reports.items()
                if found is not None and name in found
            },
            "compared": self._reader.compared,
            "rolled_back": self._rolled_back,
            "is_current": self._evidence.is_current,
            "guards": [each.document() for each in self._evidence.guards],
        }
        try:
            self._replicas.write(document)
        except OSError as error:
            log.warning("cutover report not written", migration=name, reason=reason_of(error))

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

    def _save(self, state: CutoverState) -> None:
        """Write the state if possible; otherwise the log says so."""
        try:
            self._files.save(self.plan.digest, state)
        except OSError as error:
            self._log_unwritten(error)

    def _log_unwritten(self, error: OSError) -> None:
        name = self.plan.migration
        log.error("cutover state not written", migration=name, reason=reason_of(error))

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

    def _can_roll_back_here(self) -> bool:
        """Return whether nobody can be reached who would roll back what is under way."""
        return bool(self._files.trouble) and self.state.phase in COMMANDS["rollback"][0]

    async def _roll_back_here(self) -> None:
        """Send all calls to the old target here, also after a restart, until others know."""
        self._rolled_back = self.state.attempt
        try:
            if self._pending is not None:
                await on_own_thread(self._pending.save, self.state.attempt)
        except OSError as error:
            self._log_unkept(error)
        log.warning(
            "cutover rolled back here only",
            migration=self.plan.migration,
            reason=self._files.trouble or "another gateway has changed the cut-over",
        )

    async def _roll_back(self, decision: Decision) -> bool:
        """Use and write the state of a rollback; if others cannot read it, return False."""
        before = self.state
        if not await self._adopt(decision):
            return False
        if self._files.trouble:
            # A state that only this gateway knows would lose against one of the same epoch.
            self.state = before
            return False
        self.trips["operator"] = self.trips.get("operator", 0) + 1
        return True

    @property
    def _is_rollback_over(self) -> bool:
        """Whether a rollback made here changes nothing: it is known, or somebody has resumed."""
        is_open = self.state.phase in COMMANDS["rollback"][0]
        return self._is_known and (self._rolled_back != self.state.attempt or not is_open)

    async def _pass_on_rollback(self, shared: Mapping[str, Mapping[str, Any]]) -> None:
        """Roll back what an operator has rolled back at a gateway that could not write it."""
        state = self.state
        if self._rolled_back is not None and self._is_rollback_over:
            await self._forget_rollback()
        wanted = {self._rolled_back, *(each.get("rolled_back") for each in shared.values())}
        is_open = state.phase in COMMANDS["rollback"][0]
        if self.is_leader and is_open and state.attempt in wanted:
            decision = command(self.plan, state, "rollback", self._clock())
            if await self._roll_back(decision):
                await self._forget_rollback()

    async def _forget_rollback(self) -> None:
        """All gateways know of the rollback, or somebody has resumed."""
        self._rolled_back = None
        try:
            if self._pending is not None:
                await on_own_thread(self._pending.clear)
        except OSError as error:
            self._log_unkept(error)

    def _log_unkept(self, error: OSError) -> None:
        name = self.plan.migration
        log.warning("cutover rollback not kept", migration=name, reason=reason_of(error))


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
