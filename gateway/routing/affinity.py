"""Sequences stay where they began: rendezvous hashing, and a bounded memory of the choice.

The hash lets replicas of the gateway agree without talking; the memory keeps a sequence where it is
when the set of available places changes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from gateway.ir.context import ModelRef, Sequence
from gateway.ir.errors import Unavailable

_REMEMBERED = 65_536


class Affinity:
    """Chooses a place for each request of a sequence.

    Args:
        kind: What a place is, for errors: "target" or "endpoint".
        most: Sequences remembered; beyond that the one idle longest is forgotten.
    """

    def __init__(self, kind: str, *, most: int = _REMEMBERED) -> None:
        self._kind = kind
        self._most = most
        self._places: dict[tuple[str, int | str], str] = {}

    def choose(
        self, model: ModelRef | None, sequence: Sequence, places: Mapping[str, float]
    ) -> str:
        """Return the name of the place that this request of *sequence* goes to.

        Args:
            model: Sequences of different models have nothing to do with one another.
            sequence: Its first request, or one whose beginning nobody here saw, picks a place.
            places: Names of the places that can be had, with their weights, all above zero.

        Raises:
            Unavailable: The place that holds the sequence is not among them: what it knew of the
                sequence is lost, and going on elsewhere would give wrong answers.
        """
        key = ("" if model is None else model.name, sequence.id)
        place = self._places.pop(key, None)
        if place is None or sequence.start:
            place = rendezvous(f"{key[0]}|{sequence.id!r}", places)
        elif place not in places:
            raise Unavailable(
                f"{self._kind} {place!r} holds sequence {sequence.id!r} and is not available: "
                "the sequence is lost, start it again",
                model=model,
            )
        if not sequence.end:
            self._places[key] = place
            if len(self._places) > self._most:
                del self._places[next(iter(self._places))]
        return place


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
