"""What processes and gateways report of a cut-over, as counts, verdicts and reasons."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.migration.compare.tensors import Outcome
from gateway.migration.cutover.steps import CutoverEvidence
from gateway.migration.evidence.verdicts import GuardVerdict, Standing

_REASONS: Final = 5
_NEW: Final = {each.value for each in (Outcome.NEW_ERROR, Outcome.BOTH_ERROR, Outcome.TIMEOUT)}


def counts_of(report: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return calls, failures and calls without answer of a process; earlier versions had two."""
    calls, failures = report["calls"], report["failures"]
    return calls, failures, report.get("unanswered", failures)


def reasons_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return why calls failed or have another structure, the most frequent reasons first."""
    found: list[dict[str, Any]] = document.get("reasons", [])
    return found[:_REASONS]


def most_frequent(reasons: list[dict[str, Any]]) -> str:
    """Return the most frequent error of the new server; "" for none."""
    found = (f"{each['code']}: {each['example']}" for each in reasons if each["outcome"] in _NEW)
    return next(found, "")


def replies_of(document: Mapping[str, Any]) -> dict[str, int]:
    """Return how many replies were compared, and how many of them differ."""
    outcomes = document.get("outcomes", {})
    kinds = (Outcome.MISMATCH, Outcome.STRUCTURE)
    different = sum(outcomes.get(each.value, 0) for each in kinds)
    return {"compared": document.get("replies_compared", 0), "different": different}


def guard_verdicts(documents: list[dict[str, Any]]) -> Iterator[GuardVerdict]:
    """Yield the verdicts of a document of evidence."""
    for each in documents:
        yield GuardVerdict(each["guard"], Standing(each["verdict"]), each["evidence"])


def models_text(document: Mapping[str, Any]) -> str:
    """Return what identifies the models of both servers; "" if it is unknown."""
    found = document.get("models")
    return json.dumps(found, sort_keys=True) if found else ""


def shared_evidence(document: Mapping[str, Any]) -> CutoverEvidence:
    """Return the verdicts that another gateway tells."""
    return CutoverEvidence(
        guards=tuple(guard_verdicts(document["guards"])),
        is_current=document["is_current"],
    )


def merged_verdicts(replicas: list[tuple[GuardVerdict, ...]]) -> Iterator[GuardVerdict]:
    """Yield one verdict of each guard: it trips if any does, and holds if all do."""
    by_name: dict[str, list[GuardVerdict]] = {}
    for guards in replicas:
        for each in guards:
            by_name.setdefault(each.guard, []).append(each)
    order = [Standing.TRIPS, Standing.UNDECIDED, Standing.HOLDS]
    for found in by_name.values():
        yield min(found, key=lambda each: order.index(each.standing))
