"""Sequence affinity: all requests of a sequence go to the same target or endpoint.

Rendezvous hashing makes replicas of the gateway agree without communication. A bounded table keeps
a sequence at its target or endpoint when the set of available ones changes. `FinishSequences` lets
sequences end where they began, after a reload has changed the routes.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, sequence_of
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Unavailable
from gateway.service import ReplyCoroutine, Service

IDLE_S = 600.0
"""Default time without a request after which a sequence is forgotten."""

_MAX_SEQUENCES: Final = 65_536

R = TypeVar("R")

SequenceKey = tuple[str, int | str]
"""Name of the model and id of the sequence."""


@dataclass(slots=True)
class _Assignment:
    """The target or endpoint of a sequence.

    Attributes:
        last_used: Time of the last request.
        is_lost: It disconnected, so its state of the sequence is lost.
    """

    name: str
    last_used: float
    is_lost: bool = False


class SequenceAffinity:
    """Chooses a target or endpoint for each request of a sequence.

    Args:
        kind: "target" or "endpoint", for errors.
        idle_s: Time without a request after which a sequence is forgotten.
        capacity: Maximum number of sequences; the longest idle one is then forgotten.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        kind: str,
        *,
        idle_s: float = IDLE_S,
        capacity: int = _MAX_SEQUENCES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kind = kind
        self.idle_s = idle_s
        self._capacity = capacity
        self._clock = clock
        # In order of last use, the longest idle first.
        self._assignments: dict[SequenceKey, _Assignment] = {}

    def assign(
        self, model: ModelRef | None, sequence: CallSequence, candidates: Mapping[str, float]
    ) -> str:
        """Return the name of the target or endpoint for this request of *sequence*.

        Args:
            model: Sequences of different models are independent.
            sequence: A first request, or one of an unknown sequence, chooses a candidate.
            candidates: Weights of the available targets or endpoints by name, all above zero.

        Raises:
            Unavailable: The assigned one is not available, or it lost the sequence. Another one
                would give wrong results, because it does not have the state of the sequence.
        """
        now = self._clock()
        self._forget_idle(now)
        key = _key(model, sequence)
        current = self._assignments.pop(key, None)
        if current is not None and not sequence.start:
            if not current.is_lost and current.name in candidates:
                name = current.name
            else:
                # Every request fails until the sequence restarts or is forgotten.
                self._assignments[key] = _Assignment(current.name, now, is_lost=True)
                raise Unavailable(
                    f"sequence {sequence.id!r} is lost: its {self._kind} {current.name!r} is not "
                    "available; restart the sequence",
                    model=model,
                )
        else:
            if current is not None and current.is_lost and len(candidates) > 1:
                candidates = {one: candidates[one] for one in candidates if one != current.name}
            name = rendezvous(f"{key[0]}|{sequence.id!r}", candidates)
        if not sequence.end:
            self._assignments[key] = _Assignment(name, now)
            if len(self._assignments) > self._capacity:
                del self._assignments[next(iter(self._assignments))]
        return name

    def open_sequences(self) -> frozenset[SequenceKey]:
        """Return the sequences that have neither ended nor been idle for long."""
        self._forget_idle(self._clock())
        return frozenset(self._assignments)

    def is_any_open(self, sequences: Iterable[SequenceKey]) -> bool:
        """Return whether one of *sequences* has neither ended nor been idle for long."""
        self._forget_idle(self._clock())
        return any(key in self._assignments for key in sequences)

    def is_assigned(self, name: str) -> bool:
        """Return whether a sequence is open at the target or endpoint *name*."""
        self._forget_idle(self._clock())
        assignments = self._assignments.values()
        return any(each.name == name and not each.is_lost for each in assignments)

    def name_of(self, model: ModelRef | None, sequence: CallSequence) -> str | None:
        """Return the target or endpoint of *sequence*; None if it has none."""
        found = self._assignments.get(_key(model, sequence))
        return None if found is None else found.name

    def mark_lost(self, model: ModelRef | None, sequence: CallSequence, name: str) -> None:
        """Record that target or endpoint *name* disconnected, so that *sequence* must restart."""
        current = self._assignments.get(_key(model, sequence))
        if current is not None and current.name == name:
            current.is_lost = True

    def _forget_idle(self, now: float) -> None:
        while self._assignments:
            key, oldest = next(iter(self._assignments.items()))
            if now - oldest.last_used < self.idle_s:
                return
            del self._assignments[key]


def _key(model: ModelRef | None, sequence: CallSequence) -> SequenceKey:
    return "" if model is None else model.name, sequence.id


def rendezvous_order(key: str, names: Iterable[str]) -> list[str]:
    """Return *names* by their scores for *key*, the highest first; all have the same weight."""
    return sorted(names, key=lambda name: (-_score(name, key, 1.0), name))


def rendezvous(key: str, weights: Mapping[str, float]) -> str:
    """Return the name with the highest score for *key*; shares follow the weights.

    If a name is removed, only its keys move. Source: Thaler and Ravishankar, "A Name-Based Mapping
    Scheme for Rendezvous"; weights by -w / ln(h).
    """
    return max(weights, key=lambda name: _score(name, key, weights[name]))


def _score(name: str, key: str, weight: float) -> float:
    digest = hashlib.blake2b(f"{name}|{key}".encode(), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 1) / ((1 << 64) + 1)
    return -weight / math.log(share)


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
