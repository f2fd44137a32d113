"""HeldSequences: open sequences, each of which holds a reference to its model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.ir.context import CallSequence, ModelRef
from gateway.residency.homes import HeldModel
from gateway.routing.sequence_affinity import SequenceAffinity, SequenceKey


class HeldSequences:
    """The open sequences of an upstream.

    Args:
        affinity: Knows after which time without a request a sequence is over.
        clock: Monotonic seconds.
    """

    def __init__(self, affinity: SequenceAffinity, clock: Callable[[], float]) -> None:
        self._affinity = affinity
        self._clock = clock
        self._open: dict[SequenceKey, HeldModel] = {}
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Watch the sequences no more."""
        if self._timer is not None:
            self._timer.cancel()

    def resume(self, model: ModelRef, sequence: CallSequence) -> HeldModel | None:
        """Return the reference of an open sequence; None if the call begins it."""
        key: SequenceKey = (model.name, sequence.id)
        found = self._open.pop(key, None)
        if found is None:
            return None
        if sequence.start:
            found.release()
            return None
        found.used_at = self._clock()
        self._open[key] = found
        found.home.controller.plan.use(found.model)
        return found

    def begin(self, model: ModelRef, sequence: CallSequence, held: HeldModel) -> HeldModel:
        """Let a sequence hold a reference, beside that of its first call."""
        held.model.uses += 1
        held.used_at = self._clock()
        self._open[model.name, sequence.id] = held
        if self._timer is None:
            self._watch()
        return held

    def end(self, model: str, sequence: CallSequence) -> None:
        """Give back the reference of a sequence that is over."""
        found = self._open.pop((model, sequence.id), None)
        if found is not None:
            found.release()

    def _watch(self) -> None:
        """Release the references of sequences that have been idle for long."""
        idle_s, now = self._affinity.idle_s, self._clock()
        while self._open:
            key, oldest = next(iter(self._open.items()))
            if now < oldest.used_at + idle_s:
                delay_s = oldest.used_at + idle_s - now
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(delay_s, self._watch)
                return
            del self._open[key]
            oldest.release()
        self._timer = None
