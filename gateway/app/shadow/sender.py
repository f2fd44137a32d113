"""RecordSender: makes the records of finished calls, and puts them into an outbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.app.shadow.outbox import Outbox
from gateway.captures.privacy import Privacy
from gateway.captures.records import Recordable, record_of
from gateway.captures.transfer import ShadowRequest
from gateway.concurrency.offload import inline, off_loop
from gateway.ir.calls import InferRequest, inference_of
from gateway.ir.data import ArrayData
from gateway.ir.errors import GatewayError
from gateway.ir.teed_body import with_kept_body
from gateway.ir.tensor import Tensor
from gateway.ir.work import LongWork
from gateway.telemetry.tapped_call import TappedCall


class RecordSender:
    """Makes the records of calls for one outbox. Long work goes to the thread for it.

    Args:
        outbox: Gets the records.
        privacy: Returns what to withhold.
    """

    def __init__(self, outbox: Outbox, privacy: Callable[[], Privacy]) -> None:
        self.outbox = outbox
        self._privacy = privacy
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, call: Recordable, shadow: ShadowRequest | None = None) -> bool:
        """Send a call, or count why not; return whether it will be sent."""
        try:
            record = inline(record_of, call, self._privacy(), None)
        except LongWork:
            task = asyncio.create_task(self._send_later(call, shadow))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return True
        except GatewayError:
            self.outbox.skip("invalid")
            return False
        except Exception:
            self.outbox.skip("internal")
            raise
        return self.outbox.put(record, shadow)

    async def close(self) -> None:
        """Wait for the calls that need long work."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _send_later(self, call: Recordable, shadow: ShadowRequest | None) -> None:
        own_arrays(call)
        try:
            record = await off_loop(record_of, call, self._privacy(), None)
        except GatewayError:
            self.outbox.skip("invalid")
        else:
            self.outbox.put(record, shadow)


def own_arrays(call: Recordable) -> None:
    """Copy the arrays of the replies: a model may write to its own again."""
    call.items = [
        (at, item.changed(outputs=tuple(map(_own, item.outputs)))) for at, item in call.items
    ]


def _own(tensor: Tensor) -> Tensor:
    """Return *tensor* with a copy of an array."""
    if not isinstance(tensor.data, ArrayData):
        return tensor
    data = ArrayData(tensor.data.array.copy())
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)


class FinishedCalls:
    """Makes what a record needs of a call that has ended."""

    def __init__(self) -> None:
        # A call has a monotonic time: the difference to UTC is taken once.
        self._epoch_s = time.time() - time.monotonic()  # noqa: TID251  # a time that is written

    def recordable(self, exchange: TappedCall) -> tuple[Recordable, memoryview] | None:
        """Return a call, and what its teed body kept; None if that is not complete."""
        call, kept = exchange.call, memoryview(b"")
        if exchange.teed is not None and isinstance(call, InferRequest):
            found = exchange.teed.kept()
            if found is None:
                return None
            call, kept = with_kept_body(call, exchange.teed.start, found), found
        client = call.context.client
        recordable = Recordable(
            started_us=self.started_us(exchange.started),
            request=inference_of(call),
            kind=type(call).__name__,
            context=call.context,
            agent=client.agent[:256],
            client=client.address,
            route=exchange.path.route,
            target=exchange.path.target,
            took_us=round(exchange.took_s * 1e6),
            items=[(round(at * 1e6), item) for at, item in exchange.items],
        )
        if exchange.error is not None:
            code, recordable.error = exchange.error
            recordable.code = code.value
        return recordable, kept

    def started_us(self, started: float) -> int:
        """Return a monotonic time in UTC, microseconds since 1970."""
        return round((self._epoch_s + started) * 1e6)
