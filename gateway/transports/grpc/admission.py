"""The slots and the memory of a gRPC listener, and its limits for the messages of one stream."""

import asyncio
from collections.abc import Callable
from time import monotonic

from gateway.concurrency.limiter import WAITED_S
from gateway.ir.errors import TooLarge
from gateway.transports.client_shares import NO_CLIENT_SHARES, ClientShares
from gateway.transports.contract import GrpcFrontend, MemoryBudget, ServerLimits
from gateway.transports.reservation import RESPONSE_OVERHEAD_BYTES, Reservation, no_memory
from gateway.transports.slots import (
    LISTENER_KEYS,
    ConcurrencyLimiter,
    requests_in_flight,
    requests_per_client,
)
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import size_of


class CallAdmission:
    """Admits the calls of one listener.

    Args:
        budget: The memory budget of the process.
        limits: The limits of the listener.
        slots: The number of concurrent calls, for one client and in total; None for *limits*.

    Attributes:
        budget: The memory budget.
        calls: How many admitted calls have not ended, including their output.
        is_counted: Whether calls count in the share of their client.
        slots: Limits the calls in progress.
    """

    def __init__(
        self, budget: MemoryBudget, limits: ServerLimits, *, slots: int | None = None
    ) -> None:
        self.is_counted = slots is None
        share = requests_per_client(limits) if slots is None else None
        most = requests_in_flight(limits, budget) if slots is None else slots
        self.slots = ConcurrencyLimiter(
            "requests_in_flight", most, limits.requests_queued, share, keys=LISTENER_KEYS
        )
        self.budget = budget
        self.wait_s = limits.queue_wait_s
        self.message_bytes = limits.message_bytes
        self.stream_requests = limits.stream_requests
        self.message_timeout_s = limits.body_timeout_s
        self.calls = 0
        self._entered = 0
        self._idle: asyncio.Event | None = None  # made by who waits for it

    @property
    def has_room(self) -> bool:
        """Whether a slot is free, and no call waits for one."""
        slots = self.slots
        return slots.used < slots.limit and not slots.waiting

    def shares(self, client: ClientShares) -> ClientShares:
        """Return the shares that the calls of *client* count in."""
        return client if self.is_counted else NO_CLIENT_SHARES

    async def quiet(self, seconds: float) -> None:
        """Wait until there was no call for so many *seconds*."""
        while True:
            while self.calls:
                if self._idle is None:
                    self._idle = asyncio.Event()
                self._idle.clear()
                await self._idle.wait()
            entered = self._entered
            await asyncio.sleep(seconds)
            if entered == self._entered:
                return

    def admit(self, size: int, client: ClientShares) -> bool:
        """Acquire a slot and *size* bytes if both are free; return whether it did."""
        if not self.budget.try_acquire(size, client.memory):
            return False
        if not self.slots.try_acquire(1, client.slots):
            self.budget.release(size, client.memory)
            return False
        self.calls += 1
        self._entered += 1
        return True

    async def enter(
        self,
        size: int,
        client: ClientShares,
        held: Reservation | None = None,
        *,
        deadline: float | None = None,
        free: bool = False,
    ) -> None:
        """Acquire a slot and *size* bytes, waiting for both.

        Args:
            size: What the call counts in the budget.
            client: The shares of the client.
            held: An earlier reservation for the message, which is released.
            deadline: Until when to wait; None for no limit.
            free: Whether the call is a health check, which needs neither slot nor memory.  Call
                `leave` for it too.

        Raises:
            Overloaded: They did not become free in time.
            DeadlineExceeded: They did not become free before the deadline.
        """
        began = monotonic()
        self._entered += 1
        self.calls += 1
        if held is None:
            held = Reservation(self.budget, self.wait_s, client.memory, deadline)
        before_s = held.waited_s
        try:
            held.stop_watching()
            if free:
                held.close()
                return
            # Memory comes first: who has a slot must not wait for those who wait for slots.
            missing = size - held.size_bytes
            if missing < 0:
                held.release(-missing)
            has_memory = missing <= 0 or held.try_grow_rest(missing)
            if has_memory and not before_s and self.slots.try_acquire(1, client.slots):
                held.detach(size)  # nearly always nothing is waited for
                return
            if not has_memory:
                await held.grow(missing)
            await self.slots.wait(self.wait_s, client.slots, deadline=deadline)
            held.detach(size)
            WAITED_S.set(before_s + monotonic() - began)
        except BaseException:
            held.close()
            self.leave()
            raise

    def begin(self) -> None:
        """Note a request that is admitted elsewhere or later; `leave` notes its end."""
        self._entered += 1
        self.calls += 1

    def leave(self) -> None:
        """Note the end of a call that was admitted."""
        self.calls -= 1
        if self._idle is not None and not self.calls:
            self._idle.set()

    def reservation(self, client: ClientShares, deadline: float | None = None) -> Reservation:
        """Return what may hold bytes for *client*, and waits for them until *deadline*."""
        return Reservation(self.budget, self.wait_s, self.shares(client).memory, deadline)

    def hold_response(self, size: int, client: ClientShares) -> Reservation:
        """Return what holds a response of *size* bytes. Raises Overloaded."""
        held = self.reservation(client)
        if not held.try_grow_response(size):
            raise no_memory(size)
        return held

    def check(self, answer: GrpcResponse) -> None:
        """Raise TooLarge for a response above the limit."""
        size, limit = size_of(answer.message), self.message_bytes
        if size > limit:
            raise TooLarge(
                f"the response has {size} bytes, at most {limit} are allowed", limit="message_bytes"
            )

    def checked(
        self, answer: GrpcResponse, request: GrpcRequest, frontend: GrpcFrontend
    ) -> GrpcResponse:
        """Return a response, or the frontend's error in its place if it is above the limit."""
        try:
            self.check(answer)
        except TooLarge as error:
            return frontend.reject_message(request, error)
        return answer


class Slot:
    """A slot and bytes that one call holds; entering it raises as `CallAdmission.enter`.

    Args:
        admission: The admission that the listener has.
        size: The size of the message.
        client: The shares of the client.
        held: An earlier reservation for the message; None for none.
        deadline: The deadline of the call; None for none.
        free: Whether it needs neither slot nor memory.
    """

    __slots__ = ("_admission", "_client", "_deadline", "_free", "_reservation", "_size")

    def __init__(
        self,
        admission: CallAdmission,
        size: int,
        client: ClientShares,
        held: Reservation | None = None,
        *,
        deadline: float | None = None,
        free: bool = False,
    ) -> None:
        self._admission = admission
        self._size = size + admission.budget.call_bytes
        self._deadline = deadline
        self._free = free
        self._client = admission.shares(client)
        self._reservation = held

    async def __aenter__(self) -> None:
        await self._admission.enter(
            self._size, self._client, self._reservation, deadline=self._deadline, free=self._free
        )

    async def __aexit__(self, *_details: object) -> None:
        admission, client = self._admission, self._client
        if not self._free:
            admission.slots.release(1, client.slots)
            admission.budget.release(self._size, client.memory)
        admission.leave()


class GrpcSessionLimits:
    """What the listener allows the messages of one bidirectional stream.

    Args:
        admission: The admission that the listener has.
        client: The shares of the client.
        watch: Called with the reservation of each response that waits, to end the stream if its
            client does not read while others wait for memory.
    """

    def __init__(
        self,
        admission: CallAdmission,
        client: ClientShares,
        watch: Callable[[Reservation], None] = lambda _held: None,
    ) -> None:
        self._admission = admission
        self._client = client
        self._watch = watch
        self.max_calls = admission.stream_requests

    def admit(self, wire: GrpcRequest, /) -> Slot:
        """Hold a slot and the bytes of the message."""
        return Slot(self._admission, size_of(wire.message), self._client, deadline=wire.deadline)

    def check_response(self, answer: GrpcResponse, /) -> None:
        """Raise TooLarge for a response above the limit."""
        self._admission.check(answer)

    def hold(self, answer: GrpcResponse, /) -> Reservation:
        """Return the reservation of a response that waits. Raises Overloaded."""
        size = size_of(answer.message) + RESPONSE_OVERHEAD_BYTES
        held = self._admission.hold_response(size, self._client)
        self._watch(held)
        return held
