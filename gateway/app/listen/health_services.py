"""The gRPC services about a server itself: health and reflection."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.ir.context import Client, ModelRef
from gateway.policies.access.operations import HEALTH
from gateway.transports.contract import GrpcMount
from gateway.transports.grpc.health import Health
from gateway.transports.grpc.reflection import Reflection, ServiceSchemas

HEALTH_PROTOCOL: Final = "grpc.health"
"""The protocol of grpc.health.v1, for the log and for rules."""


class DescribedProtocol(NamedTuple):
    """What reflection tells about the protocol of one codec.

    Attributes:
        protocol: The name of the codec.
        methods: The methods of its services, by full path.
        descriptors: Serialized FileDescriptorProtos.
    """

    protocol: str
    methods: Iterable[str]
    descriptors: tuple[bytes, ...]

    @property
    def services(self) -> list[str]:
        """The names of its services."""
        return list(dict.fromkeys(path.split("/")[1] for path in self.methods))


class ListenerQuestions(Protocol):
    """What a listener replies to questions about itself."""

    async def model_status(self, name: str, client: Client, /) -> bool | None:
        """Return whether a model is ready; None if no server has it."""
        ...

    def check(
        self, client: Client, operation: str, protocol: str, model: ModelRef | None = None, /
    ) -> None:
        """Check a request that is no call. Raises Forbidden."""
        ...

    def usable_protocols(self, client: Client, protocols: Iterable[str], /) -> frozenset[str]:
        """Return those of *protocols* that reflection shows a client. Raises Forbidden."""
        ...


def server_services(
    described: Sequence[DescribedProtocol],
    ready: Callable[[], Awaitable[bool]],
    listener: ListenerQuestions,
) -> tuple[GrpcMount, ...]:
    """Return health and reflection.

    Args:
        described: The protocols of the listener.
        ready: Returns whether the gateway is ready.
        listener: Replies about models, and knows what clients may do.
    """
    names = frozenset(["", *(name for each in described for name in each.services)])
    protocols = [each.protocol for each in described]
    # Clients that may use the same protocols share what reflection knows of them.
    known: dict[frozenset[str], ServiceSchemas] = {}

    async def status(service: str, client: Client) -> bool | None:
        if service not in names:
            return await listener.model_status(service, client)
        listener.check(client, HEALTH, HEALTH_PROTOCOL)
        return await ready()

    def schemas(client: Client) -> ServiceSchemas:
        usable = listener.usable_protocols(client, protocols)
        if usable not in known:
            shown = [each for each in described if each.protocol in usable]
            services = [name for each in shown for name in each.services]
            known[usable] = ServiceSchemas(services, [each.descriptors for each in shown])
        return known[usable]

    return Health(status).mount, Reflection(schemas).mount
