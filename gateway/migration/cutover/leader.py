"""One cut-over in the leading process: its state, its evidence, and what operators see of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.api.extension import Reports
from gateway.api.start_error import reason_of
from gateway.concurrency.own_thread import on_own_thread
from gateway.migration.cutover.leader_state import LeaderState, log
from gateway.migration.cutover.reported import reasons_of, replies_of
from gateway.migration.cutover.steps import (
    COMMANDS,
    CommandRefused,
    Decision,
    answered,
    command,
    decide,
    missing_conditions,
    next_text,
    verdict_of,
    verdicts,
)
from gateway.migration.evidence.verdicts import GuardVerdict, Standing


class LeaderCutover(LeaderState):
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

    def resume_comparisons(self) -> None:
        """Let the guards of the comparisons continue where they were before the restart."""
        keeper = self._keeper()
        if keeper is not None and self.state.comparisons:
            keeper.resume_evidence(self.plan.migration, self.state.comparisons)

    async def evaluate(self, reports: Reports) -> None:
        """Decide by what the serving processes report, if this process leads.

        Otherwise follow the process that does.
        """
        async with self._lock:
            if self._is_over:
                return
            shared = await on_own_thread(self._follow)
            self._evidence = evidence = self._read(reports, shared)
            if self._replicas is not None:
                await on_own_thread(self._tell, reports)
            await self._pass_on_rollback(shared)
            if self.is_leader and not await self._adopt(
                decide(self.plan, self.state, evidence, self._clock())
            ):
                await on_own_thread(self._follow)
                if self.is_leader:
                    await self._adopt(decide(self.plan, self.state, evidence, self._clock()))

    def _follow(self) -> dict[str, dict[str, Any]]:
        """Find out who leads and which state is in force; return the reports of other gateways.

        They are read by the gateway that leads. If they are out of reach it decides nothing.
        """
        led, self.is_leader = self.is_leader, self._files.lead()
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
            "compared": self._compared_total,
            "rolled_back": self._rolled_back,
            "is_current": self._evidence.is_current,
            "guards": [each.document() for each in self._evidence.guards],
        }
        try:
            self._replicas.write(document)
        except OSError as error:
            log.warning("cutover report not written", migration=name, reason=reason_of(error))

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
        arrived = self._arrived()
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
            try:
                self._files.save(self.plan.digest, self.state)
            except OSError as error:
                self._log_unwritten(error)
        self._files.release()
