"""CutoverShift: the share of a route's calls that goes to the target which replaces the others.

`shifts.py` has all of a serving process.
"""

import hashlib
import random
from collections.abc import Callable
from typing import Any, Final

import structlog

from gateway.ir.call_keys import Key
from gateway.ir.calls import Call, sequence_of
from gateway.ir.errors import ErrorCode
from gateway.migration.evidence.local_errors import LocalErrors

log = structlog.get_logger(__name__)

_PERCENT: Final = 100.0


def _ignore() -> None: ...


class CutoverShift:
    """The run-time weight of one target, which changes as a whole.

    A call goes to the target if the hash of its key is below the share. So a client that has moved
    stays moved while the share rises, and all replicas and restarts agree.

    Args:
        migration: Its name; hashes of different migrations are independent.
        target: The name of the target.
        key: The key of a call; None for single calls. Sequences without a key move whole.
        draw: Random numbers in [0, 1), for calls without a key.
        old: The name of the target that is replaced.
        errors: The guard of the calls of this process; without limits by default.
        on_trip: Called when that guard trips.

    Attributes:
        share: The part of the calls, from 0 to 1.
        epoch: The number of the weight in force.
        attempt: The number of the attempt of the cut-over.
        is_tripped: Whether the share is 0 until the next attempt.
    """

    __slots__ = (
        "_draw",
        "_errors",
        "_key",
        "_migration",
        "_old",
        "_on_trip",
        "_salt",
        "attempt",
        "epoch",
        "is_tripped",
        "share",
        "target",
    )

    def __init__(
        self,
        migration: str,
        target: str,
        key: Key | None = None,
        draw: Callable[[], float] = random.random,
        *,
        old: str = "",
        errors: LocalErrors | None = None,
        on_trip: Callable[[], None] = _ignore,
    ) -> None:
        self.target = target
        self._migration = migration
        self._old = old
        self._errors = LocalErrors(None) if errors is None else errors
        self._on_trip = on_trip
        self._key = key
        self._draw = draw
        self._salt = hashlib.blake2b(migration.encode(), digest_size=16).digest()
        self.share = 0.0
        self.epoch = 0
        self.attempt = 0
        self.is_tripped = False

    def apply(self, percent: float, epoch: int, attempt: int) -> bool:
        """Put another weight in force; return whether it is in force now.

        A weight of an older epoch is ignored. After `trip` the share stays 0 in the same attempt.
        """
        if epoch < self.epoch or attempt < self.attempt:
            return False
        if attempt > self.attempt:
            self.is_tripped = False
            self._errors.begin()
        self.epoch, self.attempt = epoch, attempt
        self.share = 0.0 if self.is_tripped else percent / _PERCENT
        return True

    @property
    def watched(self) -> frozenset[str]:
        """The new target, and the old one if a guard compares their errors."""
        old = {self._old} if self._errors.watches_old else set()
        return frozenset({self.target, *old})

    def ended(self, target: str, code: ErrorCode | None, /) -> None:
        """Count how an inference ended, and trip if a guard does."""
        if target != self.target:
            self._errors.add_old(code)
        elif self._errors.add_new(code):
            self.trip()
            verdict = self._errors.tripped
            assert verdict is not None  # noqa: S101  # `add_new` says so
            log.warning(
                "cutover tripped",
                migration=self._migration,
                guard=verdict.guard,
                evidence=verdict.evidence,
            )
            self._on_trip()

    def report(self) -> dict[str, Any]:
        """Return the counts since the process began, and what tripped, as JSON values."""
        tripped = self._errors.tripped
        return {
            "epoch": self.epoch,
            "attempt": self.attempt,
            "calls": self._errors.calls,
            "failures": self._errors.failures,
            "unanswered": self._errors.unanswered,
            "tripped": None if tripped is None else tripped.document(),
        }

    def trip(self) -> None:
        """Stop sending calls to the target in this attempt."""
        self.share = 0.0
        self.is_tripped = True

    def moves(self, call: Call[Any]) -> bool:
        """Return whether a call that belongs to no open sequence goes to the target."""
        share = self.share
        if not 0.0 < share < 1.0:
            return share > 0.0
        key = None if self._key is None else self._key(call)
        if key is None:
            sequence = sequence_of(call)
            if sequence is None:
                return self._draw() < share
            key = f"{'' if call.model is None else call.model.name}|{sequence.id!r}"
        digest = hashlib.blake2b(key.encode(), digest_size=8, key=self._salt).digest()
        return int.from_bytes(digest, "big") < share * (1 << 64)
