"""FinishSequences: lets sequences end where they began, after a reload has changed the routes."""

from typing import Final, TypeVar

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, sequence_of
from gateway.ir.context import CallSequence
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_MAX_SEQUENCES: Final = 65_536


class FinishSequences:
    """Sends the requests of sequences that began before to *previous*, and all other calls on.

    Args:
        inner: Handles calls outside of sequences, and sequences that start from now on.
        previous: Handles all other sequences, until `end`.
    """

    def __init__(self, inner: Service, previous: Service) -> None:
        self._inner = inner
        self._previous: Service | None = previous
        self._started: BoundedDict[tuple[str, int | str], None] = BoundedDict(_MAX_SEQUENCES)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the service of the call's sequence."""
        if self._previous is not None:
            sequence = sequence_of(call)
            if sequence is not None and not self._is_new(call, sequence):
                return self._previous(call)
        return self._inner(call)

    def end(self) -> None:
        """Send all calls on from now on; idempotent."""
        self._previous = None
        self._started.clear()

    def _is_new(self, call: Call[R], sequence: CallSequence) -> bool:
        key = "" if call.model is None else call.model.name, sequence.id
        if sequence.start:
            self._started[key] = None
            return True
        return key in self._started
