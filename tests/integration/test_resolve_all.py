"""Upstreams whose addresses come from the DNS, and change while clients call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import dns.asyncresolver
import pytest
import yaml

from gateway.app import Gateway
from gateway.config.load import load_text
from gateway.ir.errors import Unavailable
from gateway.ir.tensors.tensor import as_numpy
from tests.integration.asking_kit import running
from tests.integration.http_kit import eventually
from tests.integration.reload_kit import SERVER, STEP, infer_request
from tests.name_server import NameServer, name_server

pytestmark = pytest.mark.timeout(60)

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
telemetry: {{log: {{calls_per_second: 0}}}}
upstreams:
  triton:
    url: "{url}"
    {recipe}
    limits: {{resolve_floor: 50ms}}
"""


RESOLVE = "resolve: all\n    balance: round_robin"

DEPLOY = Path(__file__).parents[2] / "deploy"
RECIPES = {
    "chart": DEPLOY / "helm" / "tensor-gateway" / "values.yaml",
    "base": DEPLOY / "kustomize" / "base" / "gateway.yaml",
    "routing": DEPLOY / "kustomize" / "overlays" / "routing" / "gateway.yaml",
    "migration": DEPLOY / "kustomize" / "overlays" / "migration" / "gateway.yaml",
    "image": DEPLOY.parent / "config" / "container.yaml",
}


def recipes() -> Iterator[tuple[str, str, str]]:
    """Yield the recipes for several pods: where, the scheme, and the keys beside the URL."""
    for name, path in RECIPES.items():
        document = yaml.safe_load(path.read_text())
        upstreams = document["upstreams"] if "upstreams" in document else {"": document["upstream"]}
        for upstream in upstreams.values():
            scheme = upstream.pop("url").partition("://")[0]
            if scheme.startswith("oip"):
                yield name, scheme, json.dumps(upstream)[1:-1]


def free_port() -> int:
    """Return a port that is free on every address of this machine."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def servers(scheme: str, port: int) -> AsyncIterator[None]:
    """Run server N at 127.0.0.N, for N from 1 to 4."""
    async with contextlib.AsyncExitStack() as stack:
        for number in (1, 2, 3, 4):
            listener = f'{scheme.removeprefix("oip+")}: "127.0.0.{number}:{port}"'
            text = SERVER.format(number=number).replace(
                'http: "127.0.0.1:0", grpc: "127.0.0.1:0"', listener
            )
            server = Gateway(load_text(text))
            await server.start()
            stack.push_async_callback(server.stop)
        yield


@contextlib.asynccontextmanager
async def following(url: str, names: NameServer, recipe: str = RESOLVE) -> AsyncIterator[Gateway]:
    """Run a gateway that follows the name in *url*, with the other keys of *recipe*."""
    async with running(CONFIG.format(url=url, recipe=recipe)) as gateway:
        yield gateway


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    """Run a DNS server that this process uses instead of that of the system."""
    async with name_server() as server:
        server.ttl_s = 0
        resolver = server.resolver()
        monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: resolver)
        yield server


async def replying_servers(gateway: Gateway) -> set[int]:
    """Call from several clients at once; return the numbers of the servers that replied."""

    async def call(value: int) -> int:
        reply = await gateway.service(infer_request("add", value))
        response = int(as_numpy(reply.outputs[0])[0])
        assert response - response % STEP == value
        return response % STEP

    return set(await asyncio.gather(*map(call, range(0, 24 * STEP, STEP))))


async def listed(gateway: Gateway) -> set[str]:
    """Return the addresses of the upstream in the status."""
    (upstream,) = (await gateway.status())["upstreams"]
    return {each["address"] for each in upstream["endpoints"]}


async def until_replies_come_from(gateway: Gateway, expected: set[int]) -> None:
    """Call until exactly the expected servers reply; no call may fail."""
    async with asyncio.timeout(45):
        while await replying_servers(gateway) != expected:
            continue


@pytest.mark.parametrize("scheme", ["oip+grpc", "oip+http"])
async def test_address_changes_lose_no_call(scheme: str, names: NameServer) -> None:
    """Calls reach all addresses of the name, and only those."""
    port = free_port()
    async with servers(scheme, port):
        names.records["triton.test.", "A"] = ["127.0.0.1", "127.0.0.2"]
        async with following(f"{scheme}://triton.test:{port}", names) as gateway:
            assert await replying_servers(gateway) == {1, 2}
            for numbers in ({2, 3, 4}, {4}, {1, 3}):
                names.records["triton.test.", "A"] = [f"127.0.0.{n}" for n in numbers]
                await until_replies_come_from(gateway, numbers)
                assert await replying_servers(gateway) == numbers
            expected = {f"127.0.0.1:{port}", f"127.0.0.3:{port}"}
            async with asyncio.timeout(20):  # an endpoint leaves after its last call
                while await listed(gateway) != expected:
                    assert await replying_servers(gateway) == {1, 3}


@pytest.mark.parametrize(("name", "scheme", "keys"), list(recipes()))
async def test_recipes_balanced_nothing_over_the_pods_of_a_name(
    name: str, scheme: str, keys: str, names: NameServer
) -> None:
    """What `deploy` tells of a headless Service reaches three pods, and a new one soon."""
    port = free_port()
    async with servers(scheme, port):
        names.records["pods.test.", "A"] = [f"127.0.0.{n}" for n in (1, 2, 3)]
        recipe = "\n    ".join(keys.split(", "))
        async with following(f"{scheme}://pods.test:{port}", names, recipe) as gateway:
            await until_replies_come_from(gateway, {1, 2, 3})
            names.records["pods.test.", "A"] = [f"127.0.0.{n}" for n in (1, 2, 3, 4)]
            await until_replies_come_from(gateway, {1, 2, 3, 4})


async def test_srv_records_set_the_ports(names: NameServer) -> None:
    """Each SRV record is an endpoint with its own port."""
    ports = free_port(), free_port()
    async with servers("oip+grpc", ports[0]), servers("oip+grpc", ports[1]):
        names.records["_grpc._tcp.triton.test.", "SRV"] = [
            f"0 1 {ports[0]} a.test.",
            f"0 1 {ports[1]} b.test.",
        ]
        names.records["a.test.", "A"] = ["127.0.0.1"]
        names.records["b.test.", "A"] = ["127.0.0.4"]
        async with following("oip+grpc://_grpc._tcp.triton.test", names) as gateway:
            assert await replying_servers(gateway) == {1, 4}


async def test_srv_priorities_are_failover_levels(names: NameServer) -> None:
    """Records of a later priority get calls only while no earlier one is reachable."""
    port, nobody = free_port(), free_port()
    service = "_grpc._tcp.triton.test."
    for number in (1, 2, 3):
        names.records[f"s{number}.test.", "A"] = [f"127.0.0.{number}"]

    def record(priority: int, number: int, at: int = port) -> str:
        return f"{priority} 1 {at} s{number}.test."

    async with servers("oip+grpc", port):
        names.records[service, "SRV"] = [record(10, 1), record(20, 2), record(20, 3)]
        async with following("oip+grpc://_grpc._tcp.triton.test", names) as gateway:
            assert await replying_servers(gateway) == {1}
            names.records[service, "SRV"] = [record(10, 1, nobody), record(20, 2), record(20, 3)]
            await until_replies_come_from(gateway, {2, 3})
            names.records[service, "SRV"] = [record(30, 1), record(20, 2), record(10, 3)]
            await until_replies_come_from(gateway, {3})


async def test_gateway_starts_before_its_name_exists(names: NameServer) -> None:
    """Calls fail with the reason until the name resolves, then succeed."""
    port = free_port()
    url = f"oip+grpc://triton.test:{port}"
    async with servers("oip+grpc", port), following(url, names) as gateway:
        with pytest.raises(Unavailable, match="has no address"):
            await replying_servers(gateway)
        names.records["triton.test.", "A"] = ["127.0.0.2"]
        await eventually(gateway.ready)
        assert await replying_servers(gateway) == {2}
