"""What the pages of migrations show."""

from __future__ import annotations

import functools
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import tostring

from markupsafe import Markup

from gateway.ir.texts import utc_text
from gateway.migration.admin.migrations.documents import Document, guards_of
from gateway.migration.compare.statistics import confidence_sequence

_POINTS: Final = 120
_MINUTES: Final = 60
_MENU: Final = "/ui/migrations"

_QUESTIONS: Final = {
    "start": ("Start", "Start the cut-over: calls begin to go to the new target?"),
    "approve": ("Approve", "Approve the next step: more calls go to the new target?"),
    "pause": ("Pause", "Pause the cut-over: weights stay as they are?"),
    "resume": ("Resume", "Resume the cut-over?"),
    "rollback": ("Roll back", "Roll back: all calls go to the old target?"),
    "reset": ("Reset", "Reset the cut-over: state and evidence begin anew?"),
}
# What makes sense in a state; the controller decides. Where the state is another one: everything.
_COMMANDS: Final = {
    "ready": ("start",),
    "mirroring": ("pause", "rollback"),
    "baking": ("pause", "rollback"),
    "waiting_for_approval": ("approve", "pause", "rollback"),
    "paused": ("resume", "rollback", "reset"),
    "rolling_back": (),
    "rolled_back": ("resume", "reset"),
    "done": ("rollback",),
}


def path_of(migration: str, sample: str | None = None, root: str = "/ui/") -> str:
    """Return the path of a migration, or of one of its samples."""
    path = f"{root}migrations/{quote(migration, safe='')}"
    return path if sample is None else f"{path}/samples/{quote(sample, safe='')}"


def migration_view(document: Document) -> Document:
    """Return what the page of a migration shows."""
    name = document["name"]
    evidence, cutover = document["evidence"], document["cutover"]
    found = evidence or {}
    timeline = found.get("timeline", [])
    skipped, dropped = found.get("skipped", {}), found.get("dropped", {})
    return {
        "title": f"Migration {name}",
        "page": _MENU,
        "name": name,
        "plan": document["plan"],
        "cutover": cutover,
        "commands": offered_commands("" if cutover is None else cutover["state"]),
        "evidence": evidence,
        "guards": guards_of(document),
        "outcomes": [(key, count) for key, count in found.get("outcomes", {}).items() if count],
        "plot": _plot(timeline),
        "timeline": timeline[-_MINUTES:],
        "latency": functools.partial(_latency, found.get("latency")),
        "samples": sorted(
            found.get("samples", []), key=lambda each: (not each["worst"], -each["at_us"])
        ),
        "lost": [
            (reason, skipped.get(reason, 0), dropped.get(reason, 0))
            for reason in dict.fromkeys((*skipped, *dropped))
            if skipped.get(reason) or dropped.get(reason)
        ],
        "sample_path": functools.partial(path_of, name),
    }


def offered_commands(state: str) -> list[tuple[str, str, str]]:
    """Return the commands that make sense in a state: name, label and question of each."""
    return [(name, *_QUESTIONS[name]) for name in _COMMANDS.get(state, _QUESTIONS)]


def sample_view(document: Document, sample: str) -> Document:
    """Return what the page of a kept call shows."""
    name = document["name"]
    kept = (document["evidence"] or {}).get("samples", [])
    return {
        "title": f"Call {sample}",
        "page": _MENU,
        "name": name,
        "migration_path": path_of(name),
        "api_path": path_of(name, sample, "/api/v1/"),
        "sample": next((each for each in kept if each["id"] == sample), None),
    }


def _latency(latency: Document | None, side: str, share: str) -> str:
    seconds = ((latency or {}).get(side) or {}).get(share)
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"


def _plot(timeline: list[Document]) -> Markup | None:
    """Return the agreement over time as SVG; some minutes become one if there are many."""
    if not timeline:
        return None
    from gateway.migration.report.plots import AgreementPoint, agreement_plot  # noqa: PLC0415  # if used

    width = -(-len(timeline) // _POINTS)
    points = []
    for first in range(0, len(timeline), width):
        rows = timeline[first : first + width]
        compared = sum(row["compared"] for row in rows)
        good = compared - sum(row["mismatched"] for row in rows)
        if compared:
            low, high = confidence_sequence(good, compared)
            label = utc_text(rows[0]["minute_us"])
            points.append(AgreementPoint(label, good / compared, low, high))
    if not points:
        return None
    # The element escapes its texts itself.
    return Markup(tostring(agreement_plot(points), encoding="unicode"))  # noqa: S704
