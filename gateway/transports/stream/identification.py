"""FrameIdentification: names the clients of the frames of one connection.

`server_connection` asks as soon as the metadata of a frame has arrived, before it reserves memory.
"""

from collections.abc import Awaitable

from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.ir.context import Client
from gateway.ir.errors import GatewayError
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.reservation import Reservation
from gateway.transports.stream.listener import StreamListenerState
from gateway.wire.stream import Frame


class FrameIdentification:
    """Asks who sends the frames of one connection.

    Args:
        listener: Reads the credentials of its frames.
        caller: The far end of the connection.

    Attributes:
        results: The clients of frames that arrive in pieces, or why these are refused, by what
            reserves their memory.
    """

    def __init__(self, listener: StreamListenerState, caller: IdentifiedCaller) -> None:
        self._listener = listener
        self._caller = caller
        self._data = ""
        self.results: dict[Reservation, Client | GatewayError] = {}

    def ask(self, frame: Frame) -> tuple[Client | Awaitable[Client], bool]:
        """Return the client of a frame, and whether the frame brought credentials.

        Raises:
            GatewayError: The client may not send it.
        """
        authentication = self._listener.authentication
        assert authentication is not None  # noqa: S101  # the listener asks for clients
        data, method = self._listener.credentials(frame)
        # What one frame brings holds until another frame brings something else.
        self._data = data or self._data
        return authentication.client(self._caller, (), method, self._data), bool(data)

    async def name_client(self, frame: Frame, held: Reservation) -> Frame:
        """Return a complete frame with its client, and without credentials.

        Args:
            frame: The frame.
            held: What reserved its memory.

        Raises:
            GatewayError: The client may not send it; the last client is then unnamed.
        """
        has_data = True  # of a frame in pieces that is not known any more
        try:
            found: Client | GatewayError | Awaitable[Client] | None = self.results.pop(held, None)
            if found is None:
                found, has_data = self.ask(frame)
            if isinstance(found, GatewayError):
                raise found
            client = found if isinstance(found, Client) else await found
        except GatewayError:
            self._caller.last = self._caller.unnamed()  # the frame before may have named a client
            raise
        return replace(
            self._listener.without_credentials(frame) if has_data else frame, client=client
        )
