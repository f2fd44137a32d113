"""UnresponsiveServer: replies in place of a server that stopped responding to probes.

A hung server accepts connections and replies to nothing. Without this service each call would wait
for it until its deadline.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from gateway.ir.calls import Call
from gateway.ir.errors import GatewayError, Unavailable
from gateway.ir.streams import is_streaming
from gateway.service import Service

R = TypeVar("R")


class UnresponsiveServer:
    """Rejects calls at once, but sends one trial call per interval to the server.

    Args:
        name: The address of the server, for errors.
        server: The service of the server.
        on_response: Called when the server responds to a trial call, also with an error.
        interval_s: Time between two trial calls.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        server: Service,
        on_response: Callable[[], None],
        *,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._server = server
        self._on_response = on_response
        self._interval_s = interval_s
        self._clock = clock
        self._next_trial = clock() + interval_s

    async def __call__(self, call: Call[R], /) -> R:
        """Reject *call*, unless it is a trial call.

        Raises:
            Unavailable: It is no trial call.
            GatewayError: The error of the server.
        """
        now = self._clock()
        if now < self._next_trial:
            raise Unavailable(
                f"endpoint {self._name!r} does not respond: its last probes had no response; "
                f"the next call is sent in {self._next_trial - now:.1f} s",
                model=call.model,
            )
        self._next_trial = now + self._interval_s
        try:
            reply = await self._server(call)
        except GatewayError as error:
            if error.origin is not None:
                self._on_response()
            raise
        if not is_streaming(call):  # an open stream does not show that the server responds
            self._on_response()
        return reply
