"""ServerFrontend: the interface between a server transport and the handling of its messages.

`gateway.frontend.frontend.Frontend` decodes, calls a service and encodes.
"""

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, closing
from typing import Generic, Protocol, TypeVar

from gateway.ir.bodies.streams import HeldReply
from gateway.ir.errors import GatewayError

Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_contra = TypeVar("A_contra", contravariant=True)


class SessionLimits(Protocol[Q_contra, A_contra]):
    """The limits of a server transport for the messages of one bidirectional stream."""

    @property
    def max_calls(self) -> int:
        """How many calls of one stream may run at the same time."""
        ...

    def admit(self, wire: Q_contra, /) -> AbstractAsyncContextManager[None]:
        """Return the reservation of one message while its call runs; entering raises Overloaded."""
        ...

    def check_response(self, response: A_contra, /) -> None:
        """Raise TooLarge for a response that exceeds the limit of the transport."""
        ...

    def hold(self, response: A_contra, /) -> HeldReply:
        """Return the reservation of one response that waits until it is sent. Raises Overloaded."""
        ...


class ServerFrontend(abc.ABC, Generic[Q, A]):
    """Turns the requests of one protocol into responses.

    A subclass must implement `__call__` and `reject`.  The defaults of the other methods suit a
    frontend of complete requests and one response at a time.
    """

    @abc.abstractmethod
    def __call__(self, wire: Q, /) -> AsyncGenerator[A, None]:
        """Yield the response to *wire*, or the responses of a stream. Raises no GatewayError."""

    @abc.abstractmethod
    def reject(self, error: GatewayError, /) -> A:
        """Return *error* in the protocol's form, for a message that was not read completely."""

    def note_request(self, wire: Q, error: GatewayError, /) -> None:  # may be empty
        """Note in *error* whatever its form depends on, of a request without its body."""

    def reject_message(self, wire: Q, error: GatewayError, /) -> A:  # noqa: ARG002
        """Return *error* as the response to *wire*, with its id where the protocol has one."""
        return self.reject(error)

    def is_probe(self, wire: Q, /) -> bool:  # noqa: ARG002
        """Return whether *wire* asks about health alone, and so needs neither slot nor memory."""
        return False

    def claims(self, wire: Q, /) -> bool:  # noqa: ARG002
        """Return whether a request under a path of another frontend is for this one."""
        return False

    async def offer(self, wire: Q, /) -> A | AsyncGenerator[A, None] | None:  # noqa: ARG002
        """Return the response to a request under a path of another frontend.

        The result is None if this one has no such path.
        """
        return None

    async def handle(self, wire: Q, /) -> A | AsyncGenerator[A, None]:
        """Return the only response to *wire*, or a generator where it streams.

        A generator around a single response costs more than many responses.
        """
        return self(wire)

    def early_bytes(self, wire: Q, /) -> int | None:  # noqa: ARG002
        """Return how many bytes of a body `handle_early` needs; None for the whole body.

        Args:
            wire: A request without its body.
        """
        return None

    async def handle_early(
        self, wire: Q, whole: Callable[[], Awaitable[Q]], /
    ) -> A | AsyncGenerator[A, None]:
        """Return what `handle` returns, for a request of which `early_bytes` have arrived.

        Args:
            wire: The beginning of the request, and the stream of the rest.
            whole: Waits for the complete request and returns it.
        """
        del wire
        return await self.handle(await whole())

    async def session(
        self, wires: AsyncIterator[Q], limits: SessionLimits[Q, A], /
    ) -> AsyncGenerator[A, None]:
        """Yield the responses to the messages of one bidirectional stream.

        - *wires* waits for each message, and ends when the client closes its half.  A frontend
          requests the next message only while fewer than `max_calls` calls run, so that flow
          control slows down a client that sends faster.
        - The transport writes each response before it requests the next one.  A response whose
          status is not OK ends the stream.
        - When the client leaves, the transport closes this generator, which cancels the calls.

        The default answers one message at a time.

        Args:
            wires: The messages of the stream.
            limits: The transport's.  A message that exceeds them has an error as its response, and
                the stream continues.
        """
        async for wire in wires:
            try:
                async with limits.admit(wire), aclosing(self(wire)) as responses:
                    async for response in responses:
                        limits.check_response(response)
                        with closing(limits.hold(response)):
                            yield response
            except GatewayError as error:
                yield self.reject_message(wire, error)
