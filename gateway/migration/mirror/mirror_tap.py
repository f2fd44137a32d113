"""MirrorTap: sends chosen calls of a migration's route to the shadow process."""

import asyncio
import socket
from time import monotonic
from typing import Any, Final

from gateway.api.tap import SampledCall
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.bodies.teed_body import TeeBudget, tee_body
from gateway.ir.calls import Call, InferRequest, OpaqueCall, inference_of
from gateway.ir.errors import ErrorCode
from gateway.ir.unread import is_unread, is_unread_reply
from gateway.migration import names
from gateway.migration.mirror.outbox import Outbox
from gateway.migration.mirror.sampling import (
    MAX_ITEMS,
    MigrationSampler,
    MirrorLimits,
    SamplingDecision,
)
from gateway.migration.replay.wire_messages import messages_of
from gateway.migration.targets import LiveMigration
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import FORWARDED
from gateway.shadow.records.transfer import ShadowRequest
from gateway.shadow.sender import FinishedCalls, RecordSender
from gateway.telemetry.metrics import Metrics

# Shadow calls need everything; nothing of it is written.
_EVERYTHING: Final = Privacy(payload="full", parameters=True)

_FORWARDED: Final = "forwarded"
_GATHER_S: Final = 0.005
"""Calls wait for others for this time, so that both processes wake up less often."""


class MirrorTap:
    """Chooses calls, and sends them after their replies. It never waits and changes no call.

    Args:
        migration: Whose route it taps.
        sock: To the shadow process.
        limits: The limits of the outbox.
        form: That of the messages which both targets get as they came; "" for none.
    """

    def __init__(
        self,
        migration: LiveMigration,
        sock: socket.socket,
        limits: MirrorLimits | None = None,
        form: str = "",
    ) -> None:
        self.migration = migration
        self._form = form
        self.sampler = MigrationSampler(migration.name, migration.config, limits)
        self.outbox = Outbox(sock, self.sampler, _GATHER_S)
        self._targets = {migration.old_name, migration.new_name}
        self._skips_large = migration.config.mirror.large == "skip"
        self._sender = RecordSender(self.outbox, lambda: _EVERYTHING)
        self._finished = FinishedCalls(self._send)
        self._tee_budget = TeeBudget(self.sampler.options.outbox_bytes)
        self._telling: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to send calls."""
        self.outbox.start()

    async def close(self, timeout_s: float) -> None:
        """Wait until all calls are compared, for at most *timeout_s*; idempotent."""
        self._finished.send_all()
        if self._telling is not None:
            self._telling.cancel()
        await self._sender.close()
        await self.outbox.close(timeout_s)

    def begin(self, call: Call[Any], /) -> SampledCall | None:
        """Return the exchange of a call that is compared, else None."""
        request = _request_of(call)
        choice = self.sampler.choose(request, call.context)
        if choice is SamplingDecision.NO:
            return None
        if is_unread(call) and not self._has_own_form(call):
            self.outbox.skip(_FORWARDED)
        elif choice is SamplingDecision.SEQUENCE:
            self.outbox.skip("sequence")
        elif choice is SamplingDecision.RATE:
            self.outbox.drop("rate")
        elif not self.outbox.admit():
            self.sampler.lost(request)
        elif type(call) is not InferRequest or streaming_body_of(call) is None:
            return SampledCall(call, monotonic(), noise=choice is SamplingDecision.NOISE)
        elif self._skips_large:
            self.outbox.skip("arriving")
            self.sampler.lost(request)
        else:
            call, teed = tee_body(call, self._tee_budget)
            return SampledCall(call, monotonic(), teed=teed, noise=choice is SamplingDecision.NOISE)
        self._tell_soon()
        return None

    def end(self, exchange: SampledCall, /) -> None:
        """Send a call in the next turn of the loop, when its reply is written."""
        self._finished.put(exchange)

    def _send(self, exchange: SampledCall) -> None:
        found = self._finished.recordable(exchange)
        reason = "arriving" if found is None else self._reason_to_skip(exchange)
        if found is not None and not reason:
            if found[0].kind in {"", FORWARDED}:
                found[0].kind = FORWARDED  # also where the gateway refused it
                found[0].wire = messages_of(exchange, found[1], None)
            context = exchange.call.context
            shadow = ShadowRequest(
                context.metadata,
                round(exchange.upstream_s * 1e6),
                exchange.noise,
                context.client.identity.name,
                exchange.shown_error,
            )
            if self._sender.send(found[0], shadow):
                return
        if reason:
            self.outbox.skip(reason)
        self.sampler.lost(_request_of(exchange.call))
        self._tell_soon()

    def _tell_soon(self) -> None:
        """Let the shadow process know of sequences that lack a call: other processes may not."""
        if self.sampler.untold and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_GATHER_S, self._tell)

    def _tell(self) -> None:
        self._telling = None
        self.outbox.tell(ShadowRequest(broken=tuple(self.sampler.untold)))
        self.sampler.untold.clear()

    def _reason_to_skip(self, exchange: SampledCall) -> str:
        """Return why a call cannot be compared, whatever its tensors; "" if it can."""
        if exchange.path.target not in self._targets:
            return "not_sent" if not exchange.path.target else "other_target"
        if any(is_unread_reply(item) for _, item in exchange.items):
            return "" if self._has_own_form(exchange.call) else _FORWARDED
        if len(exchange.items) > MAX_ITEMS:
            return "too_many_items"
        is_cancelled = exchange.error is not None and exchange.error[0] is ErrorCode.CANCELLED
        return "cancelled" if is_cancelled and not exchange.items else ""

    def _has_own_form(self, call: Call[Any]) -> bool:
        """Return whether both targets get the message of *call* as it came."""
        origin = call.message if isinstance(call, OpaqueCall) else call.context.origin
        return origin is not None and origin.whole != "" and origin.whole == self._form


def _request_of(call: Call[Any]) -> InferRequest:
    """Return the inference of *call*; one without tensors for a call that nobody here reads."""
    found = inference_of(call)
    return InferRequest(model=call.model, context=call.context) if found is None else found


def watch_migrations(metrics: Metrics, taps: list[MirrorTap]) -> None:
    """Publish the counts of migrations in this serving process."""
    by_name = {tap.migration.name: tap for tap in taps}

    def counts(attribute: str) -> dict[tuple[str, ...], int]:
        return {
            (name, key): count
            for name, tap in by_name.items()
            for key, count in getattr(tap.sampler.counts, attribute).items()
        }

    metrics.watch_counter(
        names.MIGRATION_SAMPLED,
        lambda: {(name,): tap.sampler.counts.sampled for name, tap in by_name.items()},
    )
    metrics.watch_counter(names.MIGRATION_SAMPLES, lambda: counts("outcomes"))
    metrics.watch_counter(names.MIGRATION_SKIPPED, lambda: counts("skipped"))
    metrics.watch_counter(names.MIGRATION_DROPPED, lambda: counts("dropped"))
    metrics.watch(
        names.MIGRATION_OUTBOX_BYTES,
        lambda: sum(tap.outbox.used_bytes for tap in by_name.values()),
    )
