"""Which calls of a migration are compared.

The choice depends on the key of a call alone, so that replicas and restarts agree. A call that is
chosen is counted at once, whatever becomes of it.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context
from gateway.migration.captures.sampling import CaptureCounts, is_shadow_call
from gateway.migration.settings import MigrationConfig
from gateway.shadow.draw import draw, sequence_key
from gateway.shadow.token_bucket import TokenBucket

_MIB: Final = 1 << 20
_MAX_CALLERS: Final = 4096
_MAX_SEQUENCES: Final = 65_536
MAX_ITEMS: Final = 1024
"""A stream with more replies is not compared."""


@dataclass(frozen=True, slots=True)
class MirrorLimits:
    """What may wait in an outbox of a serving process.

    Attributes:
        outbox_bytes: Elements of all calls.
        outbox_calls: Number of calls.
        sample_bytes: Largest call.
    """

    outbox_bytes: int = 64 * _MIB
    outbox_calls: int = 1024
    sample_bytes: int = 64 * _MIB


class SamplingDecision(enum.Enum):
    """What becomes of a call; all but NO are counted as sampled."""

    NO = "no"
    YES = "yes"
    NOISE = "noise"
    """It is compared, and the old target is asked once more."""
    RATE = "rate"
    SEQUENCE = "sequence"


class MigrationSampler:
    """Chooses the calls of one migration in one serving process.

    Args:
        name: Of the migration; it keys the draw.
        config: The migration.
        limits: The limits of the outbox.
        clock: Monotonic seconds.

    Attributes:
        options: The limits of the outbox.
        counts: What became of the calls.
        percent: Share of the calls that are chosen.
        untold: Sequences of which a call was lost, and the shadow process has not been told.
    """

    def __init__(
        self,
        name: str,
        config: MigrationConfig,
        limits: MirrorLimits | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.options = MirrorLimits() if limits is None else limits
        self.counts = CaptureCounts()
        self._name = name
        self.percent = config.sample.percent
        self._threshold = self.percent / 100
        noise = 0.0 if config.noise is None else config.noise.percent / 100
        self._noise = noise * self._threshold
        self._first = config.sample.first
        self._takes_sequences = config.mirror.sequences == "whole"
        self._tokens = TokenBucket(config.sample.per_second, clock)
        self._callers: BoundedDict[object, int] = BoundedDict(_MAX_CALLERS)
        # Sequences of which a call was lost: their later calls are not compared either.
        self._broken: BoundedDict[str, None] = BoundedDict(_MAX_SEQUENCES)
        self.untold: BoundedDict[str, None] = BoundedDict(_MAX_SEQUENCES)

    def choose(self, request: InferRequest, context: Context) -> SamplingDecision:
        """Return whether a call is compared, and count it if so."""
        if is_shadow_call(context):
            return SamplingDecision.NO
        sequence = sequence_key(request, context.client.identity.name)
        number = draw(sequence or context.request_id, self._name)
        is_chosen = number < self._threshold
        if not is_chosen and (sequence or not self._is_first(request, context)):
            return SamplingDecision.NO
        self.counts.sampled += 1
        if sequence and not self._may_continue(sequence, request):
            return SamplingDecision.SEQUENCE
        if not self._tokens.take():
            self.lost(request)
            return SamplingDecision.RATE
        return (
            SamplingDecision.NOISE
            if number < self._noise and not sequence
            else SamplingDecision.YES
        )

    def lost(self, request: InferRequest) -> None:
        """Note that a chosen call is not compared, so that the rest of its sequence is not."""
        sequence = sequence_key(request, request.context.client.identity.name)
        if sequence:
            self._broken[sequence] = None
            self.untold[sequence] = None

    def _may_continue(self, key: str, request: InferRequest) -> bool:
        if not self._takes_sequences:
            return False
        if request.sequence is not None and request.sequence.start:
            self._broken.pop(key, None)
        if key in self._broken:
            self.untold[key] = None  # it may have started again, with a call to another process
            return False
        return True

    def _is_first(self, request: InferRequest, context: Context) -> bool:
        """Return whether the call is one of the first of its kind."""
        if not self._first:
            return False
        inputs = tuple(
            [(each.name, each.datatype, each.shape and each.shape[1:]) for each in request.inputs]
        )
        kind = (context.client.address, context.protocol, request.model, inputs)
        found = self._callers.get(kind, 0)
        if found < self._first:
            self._callers[kind] = found + 1
        return found < self._first
