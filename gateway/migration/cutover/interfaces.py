"""What a cut-over needs of others: evidence, the place of its state, and the other gateways."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from gateway.api.extension import Reports
from gateway.migration.cutover.shifts import ShiftWeights
from gateway.migration.cutover.steps import CutoverEvent, CutoverState


class ArrivedEvidence(Protocol):
    """The evidence of a migration.

    Attributes:
        document: The evidence, by the process that compares replies.
        at_s: When it arrived, in monotonic seconds.
    """

    @property
    def document(self) -> Mapping[str, Any]: ...  # noqa: D102

    @property
    def at_s(self) -> float: ...  # noqa: D102


class EvidenceKeeper(Protocol):
    """The process that compares replies, from its parent's side."""

    @property
    def evidence(self) -> Mapping[str, ArrivedEvidence]:
        """The latest evidence by migration."""

    def reset_evidence(self, migration: str) -> None:
        """Start the evidence of a migration again."""

    def resume_evidence(self, migration: str, earlier: Mapping[str, Any]) -> None:
        """Let the guards of a migration continue with what a document had as `resume`."""


class ServingProcesses(Protocol):
    """The processes that serve clients."""

    async def exchange_weights(self, weights: ShiftWeights) -> Reports:
        """Put weights in force, and return the report of each process; None of one that is late."""


class StateStore(Protocol):
    """Keeps the state of a cut-over, and elects the gateway that decides."""

    @property
    def trouble(self) -> str:
        """Why nobody can be elected at present; "" if that is possible."""

    def try_lead(self) -> bool:
        """Return whether this gateway decides from now on."""

    def release(self) -> None:
        """Let another gateway decide; idempotent."""

    def load(self, digest: str) -> CutoverState | None:
        """Return the state of the plan with this hash; None if there is nothing new.

        Raises:
            UnusableState: It is damaged, or the state of another plan.
        """

    def save(self, digest: str, state: CutoverState) -> None:
        """Replace the state.

        Raises:
            OSError: It cannot be written. A StateConflict means that it must be read again.
        """

    def set_aside(self) -> None:
        """Keep a state that cannot be used under another name."""

    def append(self, event: CutoverEvent, state: CutoverState, at_s: float) -> None:
        """Add an event to the log."""

    def events(self) -> list[dict[str, Any]]:
        """Return the last events, the latest last. It does not wait for another machine."""


class ReplicaReports(Protocol):
    """What gateways of one cut-over tell the one that leads."""

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace what the others read of this gateway."""

    def others(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return name and document of each other gateway that has written lately.

        Raises:
            OSError: They are out of reach.
        """

    def remove(self) -> None:
        """Remove what the others read of this gateway; idempotent."""
