"""ServerFrontend: what a server transport hands its messages to.

The implementation that decodes, calls a service and encodes is `gateway.frontend.Frontend`.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Generic, Protocol, TypeVar

from gateway.ir.errors import GatewayError

Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_contra = TypeVar("A_contra", contravariant=True)


class SessionLimits(Protocol[Q_contra, A_contra]):
    """What a server transport allows the messages of one bidirectional stream."""

    @property
    def max_calls(self) -> int:
        """How many calls of one stream may run at a time."""
        ...

    def admit(self, wire: Q_contra, /) -> AbstractAsyncContextManager[None]:
        """Hold what one message needs while its call runs; entering it raises Overloaded."""
        ...

    def check_response(self, answer: A_contra, /) -> None:
        """Raise TooLarge for a response that is over the limit of the transport."""
        ...


class ServerFrontend(abc.ABC, Generic[Q, A]):
    """Turns the requests of one protocol into responses.

    A subclass must give `__call__` and `reject`.  The other methods have defaults that are right
    for a frontend with whole requests and one response at a time.
    """

    @abc.abstractmethod
    def __call__(self, wire: Q, /) -> AsyncGenerator[A, None]:
        """Yield the response to *wire*, or the responses of a stream. Raises no GatewayError."""

    @abc.abstractmethod
    def reject(self, error: GatewayError, /) -> A:
        """Return *error* in the protocol's form, for a message that was not read whole."""

    def reject_message(self, wire: Q, error: GatewayError, /) -> A:  # noqa: ARG002
        """Return *error* as the response to *wire*, with its id where the protocol has one."""
        return self.reject(error)

    async def handle(self, wire: Q, /) -> A | AsyncGenerator[A, None]:
        """Return the only response to *wire*, or a generator where it streams.

        A generator around a single response costs more than many a response.
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
            wire: What has arrived, and the stream of the rest.
            whole: Returns the whole request when it has arrived.
        """
        del wire
        return await self.handle(await whole())

    async def session(
        self, wires: AsyncIterator[Q], limits: SessionLimits[Q, A], /
    ) -> AsyncGenerator[A, None]:
        """Yield the responses to the messages of one bidirectional stream.

        - *wires* waits for each message, and ends when the client closes its half.  A frontend
          asks for the next message only while fewer than `most` calls run, so that flow control
          holds back a client that sends faster.
        - The transport writes each response before it asks for the next one.  A response whose
          status is not OK ends the stream.
        - When the client leaves, the transport closes this generator, which cancels the calls.

        The default answers one message at a time.

        Args:
            wires: The messages of the stream.
            limits: What the transport allows.  Its refusals are responses of the stream, which
                goes on.
        """
        async for wire in wires:
            try:
                async with limits.admit(wire), aclosing(self(wire)) as answers:
                    async for answer in answers:
                        limits.check_response(answer)
                        yield answer
            except GatewayError as error:
                yield self.reject_message(wire, error)
