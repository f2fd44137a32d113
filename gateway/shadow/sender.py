"""Makes the records of finished calls after their replies, and puts them into an outbox."""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from gateway.api.tap import TappedCall
from gateway.concurrency.offload import off_loop, run_bounded_on_loop
from gateway.ir.bodies.teed_body import with_kept_body
from gateway.ir.calls import InferRequest, InferResponse, inference_of
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.data import ArrayData
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.unread import is_unread, is_unread_reply
from gateway.ir.work import LongWork
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import (
    FORWARDED,
    MissingElements,
    Recordable,
    RecordedCall,
    record_of,
)

log = structlog.get_logger(__name__)

E = TypeVar("E", bound=TappedCall)
N = TypeVar("N")
N_contra = TypeVar("N_contra", contravariant=True)


class RecordOutbox(Protocol[N_contra]):
    """Sends the records of calls, each with a note."""

    def put(self, record: RecordedCall, note: N_contra, /) -> bool:
        """Send a call, or drop and count it; return whether it will be sent."""
        ...

    def skip(self, reason: str, note: N_contra, /) -> None:
        """Count a call that has no record."""
        ...


class RecordSender(Generic[N]):
    """Makes the records of calls for one outbox. Long work goes to the thread for it.

    Args:
        outbox: Gets the records.
        privacy: Returns what to withhold.
    """

    def __init__(self, outbox: RecordOutbox[N], privacy: Callable[[], Privacy]) -> None:
        self.outbox = outbox
        self._privacy = privacy
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, call: Recordable, note: N) -> bool:
        """Send a call, or count why not; return whether it will be sent."""
        try:
            record = run_bounded_on_loop(record_of, call, self._privacy(), None)
        except LongWork:
            task = asyncio.create_task(self._send_later(call, note))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return True
        except MissingElements as missing:
            self.outbox.skip(missing.reason, note)
            return False
        except GatewayError:
            self.outbox.skip("invalid", note)
            return False
        except Exception:
            self.outbox.skip("internal", note)
            raise
        return self.outbox.put(record, note)

    async def close(self) -> None:
        """Wait for the calls that need long work."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _send_later(self, call: Recordable, note: N) -> None:
        try:
            record = await off_loop(record_of, call, self._privacy(), None)
        except MissingElements as missing:
            self.outbox.skip(missing.reason, note)
        except GatewayError:
            self.outbox.skip("invalid", note)
        except Exception:  # a defect costs one sample
            self.outbox.skip("internal", note)
            log.exception("call not recorded")
        else:
            self.outbox.put(record, note)


def with_version(request: InferRequest | None, name: str) -> InferRequest | None:
    """Return *request* with the name of its model, where the client sent "name-version"."""
    model = None if request is None else request.model
    if request is None or model is None or not name or not model.name.startswith(f"{name}-"):
        return request
    return request.changed(model=ModelRef(name, model.name[len(name) + 1 :]))


def own_arrays(items: list[tuple[float, InferResponse]]) -> None:
    """Replace the arrays of replies by copies: a model may write to its own again."""
    for place, (at, item) in enumerate(items):
        for tensor in item.outputs:
            if type(tensor.data) is ArrayData:
                items[place] = at, item.changed(outputs=tuple(map(_own, item.outputs)))
                break


def _own(tensor: Tensor) -> Tensor:
    """Return *tensor* with a read-only copy of an array."""
    if not isinstance(tensor.data, ArrayData):
        return tensor
    data = ArrayData(tensor.data.array.copy())
    data.array.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)


class FinishedCalls(Generic[E]):
    """Calls that have ended. They are sent in the next turn of the loop, after their replies.

    Args:
        send: Sends one of them. What it raises is logged: a defect costs one sample.
    """

    def __init__(self, send: Callable[[E], None]) -> None:
        self._send = send
        self._ended: list[E] = []
        # A call has a monotonic time: the difference to UTC is taken once.
        self._epoch_s = time.time() - time.monotonic()  # noqa: TID251  # a time that is written

    def put(self, exchange: E) -> None:
        """Send *exchange* in the next turn of the loop, and then release its teed body."""
        own_arrays(exchange.items)
        if not self._ended:
            asyncio.get_running_loop().call_soon(self.send_all)
        self._ended.append(exchange)

    def send_all(self) -> None:
        """Send what has ended."""
        ended, self._ended = self._ended, []
        for exchange in ended:
            try:
                self._send(exchange)
            except Exception:
                log.exception("call not recorded")
            finally:
                if exchange.teed is not None:
                    exchange.teed.release()

    def recordable(self, exchange: E) -> tuple[Recordable, memoryview] | None:
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
            is_refused=exchange.is_refused,
            context=call.context,
            agent=client.agent[:256],
            client=client.address,
            route=exchange.path.route,
            target=exchange.path.target,
            took_us=round(exchange.took_s * 1e6),
            items=[(round(at * 1e6), item) for at, item in exchange.items],
        )
        if is_unread(call) or any(is_unread_reply(item) for _, item in exchange.items):
            recordable.request = InferRequest(model=call.model, context=call.context)
            recordable.kind = "" if exchange.is_refused else FORWARDED
            recordable.items = []
        if exchange.error is not None:
            code, recordable.error = exchange.error
            recordable.code = code.value
        return recordable, kept

    def started_us(self, started: float) -> int:
        """Return a monotonic time in UTC, microseconds since 1970."""
        return round((self._epoch_s + started) * 1e6)
