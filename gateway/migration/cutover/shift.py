"""CutoverShift: the share of a route's calls that goes to the target which replaces the others."""

import hashlib
import random
from collections.abc import Callable
from typing import Any, Final

from gateway.ir.call_keys import Key
from gateway.ir.calls import Call, sequence_of
from gateway.ir.errors import ErrorCode

_PERCENT: Final = 100.0


class CutoverShift:
    """The run-time weight of one target, which changes as a whole.

    A call goes to the target if the hash of its key is below the share. So a client that has moved
    stays moved while the share rises, and all replicas and restarts agree.

    Args:
        migration: Its name; hashes of different migrations are independent.
        target: The name of the target.
        key: The key of a call; None for single calls. Sequences without a key move whole.
        draw: Random numbers in [0, 1), for calls without a key.

    Attributes:
        share: The part of the calls, from 0 to 1.
        epoch: The number of the weight in force.
        attempt: The number of the attempt of the cut-over.
        is_tripped: Whether the share is 0 until the next attempt.
    """

    __slots__ = ("_draw", "_key", "_salt", "attempt", "epoch", "is_tripped", "share", "target")

    def __init__(
        self,
        migration: str,
        target: str,
        key: Key | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.target = target
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
        self.epoch, self.attempt = epoch, attempt
        self.share = 0.0 if self.is_tripped else percent / _PERCENT
        return True

    @property
    def watched(self) -> frozenset[str]:
        """The targets whose inferences `ended` is called for: none."""
        return frozenset()

    def ended(self, _target: str, _code: ErrorCode | None, /) -> None:
        """Receive how an inference of a watched target ended."""

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
