"""Sequences stay where they began: rendezvous hashing, and a bounded memory of the choice.

The hash lets replicas of the gateway agree without talking; the memory keeps a sequence where it is
when the set of available places changes.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Unavailable

IDLE_S = 600.0
"""How long a sequence is held without a request, unless the configuration says otherwise."""

_REMEMBERED = 65_536


@dataclass(slots=True)
class _Assignment:
    """Where a sequence is.

    Attributes:
        used: When it was last asked about.
        lost: The place broke off: what it knew of the sequence is gone.
    """

    place: str
    used: float
    lost: bool = False


class SequenceAffinity:
    """Chooses a place for each request of a sequence.

    Args:
        kind: What a place is, for errors: "target" or "endpoint".
        idle_s: A sequence without a request for so long is over, and forgotten.
        most: Sequences remembered; beyond that the one idle longest is forgotten.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        kind: str,
        *,
        idle_s: float = IDLE_S,
        most: int = _REMEMBERED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kind = kind
        self._idle_s = idle_s
        self._most = most
        self._clock = clock
        # In the order of their last use, the one idle longest first.
        self._held: dict[tuple[str, int | str], _Assignment] = {}

    def assign(
        self, model: ModelRef | None, sequence: Sequence, places: Mapping[str, float]
    ) -> str:
        """Return the name of the place that this request of *sequence* goes to.

        Args:
            model: Sequences of different models have nothing to do with one another.
            sequence: Its first request, or one whose beginning nobody here saw, picks a place.
            places: Names of the places that can be had, with their weights, all above zero.

        Raises:
            Unavailable: The place that holds the sequence is not among them, or was lost: what it
                knew of the sequence is gone, and going on elsewhere would give wrong answers.
        """
        now = self._clock()
        self._forget_idle(now)
        key = _key(model, sequence)
        held = self._held.pop(key, None)
        if held is not None and not sequence.start and (held.lost or held.place not in places):
            # Said again as often as it is asked, until it is started again, or idle for long.
            self._held[key] = _Assignment(held.place, now, lost=True)
            raise Unavailable(
                f"{self._kind} {held.place!r} holds sequence {sequence.id!r} and is not available: "
                "the sequence is lost, start it again",
                model=model,
            )
        if held is None or sequence.start:
            if held is not None and held.lost and len(places) > 1:
                places = {name: weight for name, weight in places.items() if name != held.place}
            place = rendezvous(f"{key[0]}|{sequence.id!r}", places)
        else:
            place = held.place
        if not sequence.end:
            self._held[key] = _Assignment(place, now)
            if len(self._held) > self._most:
                del self._held[next(iter(self._held))]
        return place

    def mark_lost(self, model: ModelRef | None, sequence: Sequence, place: str) -> None:
        """Note that *place* broke off in the middle of *sequence*: it must be started again."""
        held = self._held.get(_key(model, sequence))
        if held is not None and held.place == place:
            held.lost = True

    def _forget_idle(self, now: float) -> None:
        while self._held:
            key, held = next(iter(self._held.items()))
            if now - held.used < self._idle_s:
                return
            del self._held[key]


def _key(model: ModelRef | None, sequence: Sequence) -> tuple[str, int | str]:
    return "" if model is None else model.name, sequence.id


def rendezvous(key: str, places: Mapping[str, float]) -> str:
    """Return the place of highest score for *key*; shares follow the weights.

    A place that goes away moves only the keys it had. Source: Thaler and Ravishankar, "A
    Name-Based Mapping Scheme for Rendezvous"; weights by -w / ln(h).
    """

    def score(name: str) -> float:
        digest = hashlib.blake2b(f"{name}|{key}".encode(), digest_size=8).digest()
        share = (int.from_bytes(digest, "big") + 1) / ((1 << 64) + 1)
        return -places[name] / math.log(share)

    return max(places, key=score)
