"""ClientShares: what one client may have of the limits that all clients of a process share."""

from dataclasses import dataclass
from typing import Final

from gateway.api.access import Peer
from gateway.concurrency.limiter import Limiter
from gateway.concurrency.waiters import Share
from gateway.transports.callers import Caller, IdentifiedCaller
from gateway.transports.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True)
class ClientShares:
    """The shares of one client, which is an address, or a connection without an address.

    Attributes:
        slots: Of the requests in flight of a listener.
        memory: The client's share of the memory budget.
        caller: The address and the agent of the client.
    """

    slots: Share | None
    memory: Share | None
    caller: Caller


NO_CLIENT_SHARES: Final = ClientShares(None, None, Caller(""))
"""The shares of no client: only the limits of all clients apply."""


def client_shares(
    address: str, slots: Limiter, budget: MemoryBudget, peer: Peer | None = None
) -> ClientShares:
    """Return the shares of the clients at *address*; "" means a connection without an address.

    Args:
        address: Their address.
        slots: The slots of the listener.
        budget: The memory budget of the process.
        peer: The far end of the connection, if its requests name their clients.
    """
    caller = Caller(address) if peer is None else IdentifiedCaller(peer)
    if not address:
        return ClientShares(Share(), Share(), caller)
    return ClientShares(slots.share(address), budget.share(address), caller)
