"""EvidenceReader: what the leader of a cut-over learns from processes, replicas and comparisons."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.api.extension import Reports
from gateway.migration.cutover.interfaces import ArrivedEvidence, EvidenceKeeper
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
from gateway.migration.cutover.steps import CutoverEvidence, CutoverPlan, CutoverState

# Evidence comes once a second.
_CURRENT_S: Final = 5.0

_RESET_S: Final = 5.0


class EvidenceReader:
    """The counts of all sources of one cut-over, as they were the last time.

    Args:
        plan: What the cut-over does.
        keeper: Returns what has the evidence; None if nothing compares replies.
        monotonic: Monotonic seconds.

    Attributes:
        compared: How many replies this gateway has compared in all.
    """

    def __init__(
        self,
        plan: CutoverPlan,
        keeper: Callable[[], EvidenceKeeper | None],
        monotonic: Callable[[], float],
    ) -> None:
        self.compared = 0
        self._plan = plan
        self._keeper = keeper
        self._monotonic = monotonic
        self._counts: dict[str, tuple[int, ...]] = {}
        self._compared = (0, 0)
        self._reset_at_s = -_RESET_S

    def resume(self, state: CutoverState) -> None:
        """Let the guards of the comparisons continue where *state* has them."""
        keeper = self._keeper()
        if keeper is not None and state.comparisons:
            keeper.resume_evidence(self._plan.migration, state.comparisons)

    def read(
        self, state: CutoverState, reports: Reports, shared: Mapping[str, Mapping[str, Any]]
    ) -> CutoverEvidence:
        """Return what happened since the last time, with what other gateways report.

        Args:
            state: Where the cut-over stands.
            reports: What the serving processes report.
            shared: What other gateways report.
        """
        name = self._plan.migration
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
        own = self._compared_since(state)
        self.compared += own.compared
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

    def arrived(self) -> ArrivedEvidence | None:
        """Return the latest evidence of this gateway; None if nothing compares replies."""
        keeper = self._keeper()
        return None if keeper is None else keeper.evidence.get(self._plan.migration)

    def _compared_since(self, state: CutoverState) -> CutoverEvidence:
        """Return what the comparisons of this gateway show."""
        nothing = CutoverEvidence(is_current=False)
        arrived = self.arrived()
        if arrived is None:
            return nothing
        document, now = arrived.document, self._monotonic()
        since_us = int(document["since_us"])
        compared = int(document.get("replies_compared", document["compared"]))
        if since_us / 1e6 < state.evidence_from_s:
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
            keeper.reset_evidence(self._plan.migration)
