"""MigrationDocuments: migrations as JSON values, from evidence and cut-overs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from gateway.config.models import Config
from gateway.migration.evidence.verdicts import Standing
from gateway.migration.settings import MIGRATIONS
from gateway.settings.config_view import ConfigView

Document = dict[str, Any]

COMMANDS: Final = ("start", "pause", "resume", "approve", "rollback", "reset")
"""What can be done with a cut-over."""


class EvidenceSource(Protocol):
    """What the shadow process has found about the migrations."""

    @property
    def evidence(self) -> Mapping[str, Document]:
        """The latest evidence by migration."""
        ...

    async def sample(self, migration: str, sample: str) -> Document | None:
        """Return one kept sample with its tensors; None if it is not kept any more."""
        ...


class CutoverSource(Protocol):
    """What moves traffic to the new target of a migration."""

    def document(self, migration: str) -> Document | None:
        """Return state, step, weight and events; None for a migration without a cut-over."""
        ...

    def moved(self, config: Config) -> Mapping[str, tuple[str, float]]:
        """Return the target and the percentage of each cut-over, by route."""
        ...

    def verdict(self, migration: str) -> tuple[Standing, Document] | None:
        """Return the verdict of all guards, and the document; None without a cut-over."""
        ...

    async def command(
        self, migration: str, command: str, at_step: int | None = None
    ) -> Document | None:
        """Run one of `COMMANDS`.

        Raises:
            LookupError: There is no such cut-over.
            ValueError: The state does not allow it.
        """
        ...


class MigrationDocuments:
    """Migrations as JSON values.

    Args:
        evidence: What the shadow process has found; None without one.
        cutovers: What moves traffic; None without a cut-over.

    Attributes:
        cutovers: What moves traffic; None without a cut-over.
    """

    def __init__(self, evidence: EvidenceSource | None, cutovers: CutoverSource | None) -> None:
        self._evidence = evidence
        self.cutovers = cutovers

    def lines(self, config: ConfigView) -> list[Document]:
        """Return a line for each migration."""
        found = (self.migration(config, name) for name in self.names(config))
        return [_line(document) for document in found if document]

    def migration(self, config: ConfigView, name: str) -> Document | None:
        """Return evidence and cut-over of a migration; None if there is none of this name."""
        if name not in self.names(config):
            return None
        plan = config.setting(MIGRATIONS).get(name)
        evidence, cutovers = self._evidence, self.cutovers
        return {
            "name": name,
            "plan": None if plan is None else plan.model_dump(mode="json"),
            "evidence": None if evidence is None else evidence.evidence.get(name),
            "cutover": None if cutovers is None else cutovers.document(name),
        }

    def names(self, config: ConfigView) -> list[str]:
        """Return the names of all migrations."""
        found = () if self._evidence is None else tuple(self._evidence.evidence)
        return list(dict.fromkeys((*config.setting(MIGRATIONS), *found)))

    async def sample(self, name: str, sample: str) -> Document | None:
        """Return one kept sample with its tensors; None if it is not kept (any more)."""
        return None if self._evidence is None else await self._evidence.sample(name, sample)

    def verdict(self, document: Document) -> tuple[Standing, Document]:
        """Return the verdict of all guards of a migration, and what is shown of it."""
        name = document["name"]
        found = None if self.cutovers is None else self.cutovers.verdict(name)
        if found is not None:
            return found
        guards = guards_of(document)
        standing = Standing(verdict_of(guards))
        return standing, {"migration": name, "verdict": standing.value, "guards": guards}


def guards_of(migration: Document) -> list[Document]:
    """Return the guards of a migration: those of its cut-over, or else of its evidence.

    A cut-over has `errors.clients`, too, which comparisons do not know.
    """
    cutover, evidence = migration["cutover"] or {}, migration["evidence"] or {}
    guards: list[Document] = cutover.get("guards") or evidence.get("guards", [])
    return guards


def verdict_of(guards: Iterable[Document]) -> str:
    """Return one verdict for all guards: one that trips decides, then one that is undecided."""
    found = {guard["verdict"] for guard in guards}
    if Standing.TRIPS.value in found:
        return Standing.TRIPS.value
    return Standing.HOLDS.value if found == {Standing.HOLDS.value} else Standing.UNDECIDED.value


def _line(document: Document) -> Document:
    evidence, cutover = document["evidence"] or {}, document["cutover"] or {}
    compared = evidence.get("replies_compared", evidence.get("compared", 0))
    differ = sum(evidence.get("outcomes", {}).get(each, 0) for each in ("mismatch", "structure"))
    return {
        "name": document["name"],
        "state": cutover.get("state", "mirroring" if evidence else "idle"),
        "weight": cutover.get("weight"),
        "verdict": verdict_of(guards_of(document)),
        "sampled": evidence.get("sampled", 0),
        "compared": compared,
        "failed": evidence.get("failed", 0),
        "reason": _first_reason(evidence.get("reasons", ())),
        "agreement": 1 - differ / compared if compared else None,
    }


def _first_reason(reasons: Sequence[Document]) -> str:
    """Return the most frequent reason why calls failed or have another structure; "" for none."""
    if not reasons:
        return ""
    return ": ".join(filter(None, (reasons[0]["code"], reasons[0]["example"])))
