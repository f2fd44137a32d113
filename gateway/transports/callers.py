"""Who sends the requests of one connection: an address, and a `user-agent` that rarely changes."""

from typing import Any, Final

from gateway.accelerator import accelerated
from gateway.api.access import Fields, Peer
from gateway.ir.context import Client
from gateway.ir.identity import Identity
from gateway.wire.http import Headers

_AGENT: Final = "user-agent"
_MAX_AGENT: Final = 256


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
            if type(fields) is not Headers:
                agent = first_value(fields, _AGENT)
            elif fields.positions is None:
                agent = fields.get(_AGENT) or ""
            else:
                place = fields.positions.get(_AGENT)
                agent = "" if place is None else fields.pairs[place][1]
            if agent != self.last.agent:
                agent = agent[:_MAX_AGENT]
                if agent != self.last.agent:
                    self.last = Client(self.last.address, agent)
        return self.last


class IdentifiedCaller(Caller):
    """The far end of one connection whose requests name their clients.

    Args:
        peer: What its transport knows of it.

    Attributes:
        peer: What its transport knows of it.
        visible: Fields, the names that were removed from them, and what was left.
    """

    __slots__ = ("peer", "visible")

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.address)
        self.peer = peer
        self.visible: tuple[Any, Any, Any] = (None, None, None)

    def client(self, fields: Fields = ()) -> Client:
        """Return the client that sent *fields*; it has no name unless these were identified."""
        if fields is self.fields:
            return self.last
        return Client(self.peer.address, agent_of(fields))

    def unnamed(self, fields: Fields = ()) -> Client:
        """Return the sender of *fields* that were refused, whoever sent equal ones before."""
        return Client(self.peer.address, agent_of(fields))

    def identified(self, fields: Fields, identity: Identity) -> Client:
        """Return the client that sent *fields*, which name *identity*."""
        last = self.last
        if fields is not self.fields or identity is not last.identity:
            agent = last.agent if fields is self.fields else agent_of(fields)
            self.fields = fields
            if identity is not last.identity or agent != last.agent:
                self.last = last = Client(last.address, agent, identity)
        return last


def agent_of(fields: Fields) -> str:
    """Return the first `user-agent` of a request, cut at 256 characters; "" for none."""
    if type(fields) is Headers:
        return (fields.get(_AGENT) or "")[:_MAX_AGENT]
    return first_value(fields, _AGENT)[:_MAX_AGENT]


@accelerated
def first_value(fields: Fields, wanted: str) -> str:
    """Return the first text in the fields *wanted*, in lower case; "" for none."""
    for name, value in fields:
        if len(name) == len(wanted) and name.lower() == wanted and isinstance(value, str):
            return value
    return ""
