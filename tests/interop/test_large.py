"""Large binary tensors of a real client, forwarded to a real server while they arrive."""

import pytest

from tests.interop.client import SCRIPTS, Client
from tests.interop.gateways import serving
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_large_tensors_round_trip(
    carrier: str, client: Client, triton_server: RunningServer
) -> None:
    """Up to 16 MB pass through the gateway and Triton exactly, over either carrier."""
    address = triton_server.grpc_address if carrier == "grpc" else triton_server.http_address
    free = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with serving("--upstream", f"oip+{carrier}://{address}", *free) as gateway:
        seen = client.run(SCRIPTS / "large.py", gateway.addresses["main.http"])
    assert {"1000": True, "300000": True, "4000000": True} == seen
