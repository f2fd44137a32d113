"""Who sends the requests of one connection: an address, and a `user-agent` that rarely changes."""

from collections.abc import Iterable
from typing import Final

from gateway.accelerator import accelerated
from gateway.ir.context import Client
from gateway.wire.http import Headers

_AGENT: Final = "user-agent"
_MAX_AGENT: Final = 256

Fields = Iterable[tuple[str, str | bytes]]
"""The headers or the metadata of a request."""


class Caller:
    """The client at the far end of one connection.

    Args:
        address: Its IP address; "" for a unix socket.

    Attributes:
        fields: The headers or the metadata of the last request.
        last: The client that sent it.
    """

    __slots__ = ("fields", "last")

    def __init__(self, address: str) -> None:
        self.last = Client(address)
        self.fields: Fields = ()

    def client(self, fields: Fields = ()) -> Client:
        """Return the client that sent *fields*.

        The same object is read once: transports cache the fields of repeated requests.
        """
        if fields is not self.fields:
            self.fields = fields
            # Written out: most requests have fields of their own.
            if type(fields) is Headers:
                agent = (fields.get(_AGENT) or "")[:_MAX_AGENT]
            else:
                agent = first_value(fields, _AGENT)[:_MAX_AGENT]
            if agent != self.last.agent:
                self.last = Client(self.last.address, agent)
        return self.last


def agent_of(fields: Fields) -> str:
    """Return the first `user-agent` of a request, cut at 256 characters; "" for none."""
    return first_value(fields, _AGENT)[:_MAX_AGENT]


@accelerated
def first_value(fields: Fields, wanted: str) -> str:
    """Return the first text in the fields *wanted*, in lower case; "" for none."""
    for name, value in fields:
        if len(name) == len(wanted) and name.lower() == wanted and isinstance(value, str):
            return value
    return ""
