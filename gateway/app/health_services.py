"""The gRPC services about a server itself: health and reflection."""

from collections.abc import Awaitable, Callable, Sequence

from gateway.ir.context import Client
from gateway.transports.contract import GrpcMount
from gateway.transports.grpc.health import Health
from gateway.transports.grpc.reflection import Reflection


def server_services(
    mounts: Sequence[GrpcMount],
    descriptors: list[tuple[bytes, ...]],
    ready: Callable[[], Awaitable[bool]],
    model_status: Callable[[str, Client], Awaitable[bool | None]],
) -> tuple[GrpcMount, ...]:
    """Return health and reflection of the services that *mounts* have.

    Args:
        mounts: The methods of protocols.
        descriptors: Serialized FileDescriptorProtos of each protocol.
        ready: Returns whether the gateway is ready.
        model_status: Returns whether a model is ready; None if no server has it.
    """
    paths = [path for mount in mounts for path in mount.methods]
    services = list(dict.fromkeys(path.split("/")[1] for path in paths))
    names = frozenset(["", *services])

    async def status(service: str, client: Client) -> bool | None:
        return await ready() if service in names else await model_status(service, client)

    return Health(status).mount, Reflection(services, descriptors).mount
