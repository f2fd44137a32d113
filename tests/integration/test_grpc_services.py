"""Health and reflection next to the mounts, called by clients of other authors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from gateway.ir.context import Client
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc.health import Health
from gateway.transports.grpc.reflection import Reflection, ServiceSchemas
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.protobuf.wire_format import WireError
from tests.integration.grpc_echo import Answers, Slow, ask, calling, echo, only_quiet, serving
from tests.integration.http_kit import retried

Serving = health_pb2.HealthCheckResponse

pytestmark = pytest.mark.usefixtures("grpc_makes")


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every ending tested in this file is normal: none may write to stderr or log a warning."""
    yield
    only_quiet(capfd, caplog)


class Switch:
    """A health status that the test sets."""

    def __init__(self) -> None:
        self.statuses: dict[str, bool] = {"": True, "test.Echo": False}

    async def __call__(self, service: str, client: Client) -> bool | None:
        return self.statuses.get(service)


async def test_health_check_reports_the_status() -> None:
    """Ready, not ready and unknown have statuses; invalid bytes are rejected."""
    health = Health(Switch())
    async with (
        serving(Answers(echo), extras=(health.mount,)) as server,
        aio.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        assert Serving.SERVING == (await stub.Check(health_pb2.HealthCheckRequest())).status
        request = health_pb2.HealthCheckRequest(service="test.Echo")
        assert Serving.NOT_SERVING == (await stub.Check(request)).status
        with pytest.raises(aio.AioRpcError) as unknown:
            await stub.Check(health_pb2.HealthCheckRequest(service="no.Such"))
        with pytest.raises(aio.AioRpcError) as broken:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\xff")
    assert grpc.StatusCode.NOT_FOUND is unknown.value.code()
    assert grpc.StatusCode.INVALID_ARGUMENT is broken.value.code()


async def test_health_watch_sends_changes_only() -> None:
    """A watch sends the status, then each change, for unknown services too."""
    switch = Switch()
    health = Health(switch, interval_s=0.01)
    async with (
        serving(Answers(echo), extras=(health.mount,)) as server,
        aio.insecure_channel(server.address) as channel,
    ):
        call = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="later")
        )
        seen = [(await call.read()).status]
        for status in (False, True):
            switch.statuses["later"] = status
            seen.append((await call.read()).status)
        call.cancel()
    assert [Serving.SERVICE_UNKNOWN, Serving.NOT_SERVING, Serving.SERVING] == seen


async def test_health_watches_per_address_are_limited() -> None:
    """An address has a quarter of the watches; a cancelled one frees its slot."""
    health = Health(Switch(), interval_s=0.01, max_watches=32)
    async with (
        serving(Answers(echo), extras=(health.mount,)) as server,
        aio.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(8)]
        for call in calls:
            await call.read()
        with pytest.raises(aio.AioRpcError, match="8 are open from this address, at most 8"):
            await stub.Watch(health_pb2.HealthCheckRequest()).read()
        calls[0].cancel()
        await retried(lambda: stub.Watch(health_pb2.HealthCheckRequest()).read(), aio.AioRpcError)


async def test_one_address_cannot_hold_all_health_watches() -> None:
    """Other addresses can watch, too, until all watches are open."""
    health = Health(Switch(), max_watches=8)

    async def watch(address: str) -> tuple[AsyncGenerator[GrpcResponse, None], GrpcResponse]:
        wire = GrpcRequest("/grpc.health.v1.Health/Watch", (b"",), client=Client(address))
        replies = health(wire)
        return replies, await anext(replies)

    opened = [await watch(address) for address in "aabbccdd"]
    assert all(reply.status is GrpcStatus.OK for _, reply in opened)
    for address, text in (("a", "2 are open from this address"), ("e", "8 are open here")):
        _, reply = await watch(address)
        assert reply.status is GrpcStatus.RESOURCE_EXHAUSTED
        assert text in reply.details
    await opened[0][0].aclose()
    assert (await watch("e"))[1].status is GrpcStatus.OK


async def test_health_check_needs_no_slot_of_a_call() -> None:
    """Health needs no slot; an open watch does not delay a drain."""
    frontend = Slow()
    health = Health(Switch())
    limits = ServerLimits(requests_in_flight=1, requests_queued=0)
    async with (
        serving(frontend, limits, extras=(health.mount,)) as server,
        calling(server) as client,
        aio.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        call = asyncio.create_task(client.send(ask(), deadline=None))
        await frontend.started.wait()
        assert Serving.SERVING == (await stub.Check(health_pb2.HealthCheckRequest())).status
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        frontend.go.set()
        await call
        async with asyncio.timeout(20):
            await server.drain(15)
        with pytest.raises(aio.AioRpcError):
            await watch.read()


def schema(package: str) -> tuple[bytes, bytes]:
    """Return two files, the second importing the first, of equal names in every package."""
    common = FileDescriptorProto(name=f"{package}/common.proto", package=package)
    common.message_type.add(name="Inner").field.add(name="count", number=1, type=5, label=1)
    kind = common.enum_type.add(name="Kind")
    kind.value.add(name="KIND_NONE", number=0)
    main = FileDescriptorProto(name="service.proto", package=package)
    main.dependency.append(common.name)
    outer = main.message_type.add(name="Outer")
    outer.nested_type.add(name="Nested")
    outer.field.add(name="inner", number=1, type=11, label=1, type_name=f".{package}.Inner")
    main.service.add(name="Echo").method.add(
        name="Unary", input_type=f".{package}.Outer", output_type=f".{package}.Inner"
    )
    return common.SerializeToString(), main.SerializeToString()


SCHEMAS = ServiceSchemas(["one.Echo", "two.Echo"], [schema("one"), schema("two")])
REFLECTION = Reflection(lambda _client: SCHEMAS)


async def test_reflection_serves_services_and_messages() -> None:
    """The library's client lists the services and builds their messages, with imports."""
    async with serving(Answers(echo), extras=(REFLECTION.mount,)) as server:

        def explore() -> tuple[list[str], bytes, str]:
            with grpc.insecure_channel(server.address) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                pool = DescriptorPool(database)
                method = pool.FindMethodByName("two.Echo.Unary")
                message: Any = GetMessageClass(method.input_type)()
                message.inner.count = 7
                return (
                    sorted(database.get_services()),
                    message.SerializeToString(),
                    pool.FindEnumTypeByName("two.Kind").values[0].name,
                )

        assert (["one.Echo", "two.Echo"], b"\x0a\x02\x08\x07", "KIND_NONE") == (
            await asyncio.to_thread(explore)
        )


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_serves_both_versions(version: str) -> None:
    """Several requests on one stream get responses in order, under either name."""
    request = reflection_pb2.ServerReflectionRequest
    async with (
        serving(Answers(echo), extras=(REFLECTION.mount,)) as server,
        aio.insecure_channel(server.address) as channel,
    ):
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        for question in (request(list_services=""), request(file_by_filename="none.proto")):
            await call.write(question)
        services, missing = await call.read(), await call.read()
        await call.done_writing()
    assert ["one.Echo", "two.Echo"] == [
        each.name for each in services.list_services_response.service
    ]
    assert request(list_services="") == services.original_request
    assert grpc.StatusCode.NOT_FOUND.value[0] == missing.error_response.error_code


def ask_reflection(**question: object) -> reflection_pb2.ServerReflectionResponse:
    """Call the reflection service without a server."""
    request = reflection_pb2.ServerReflectionRequest(**question)
    response = SCHEMAS.answer(request.SerializeToString())
    return reflection_pb2.ServerReflectionResponse.FromString(response)


@pytest.mark.parametrize(
    ("symbol", "files"),
    [
        ("one.Outer", ["service.proto", "one/common.proto"]),
        ("two.Outer.Nested", ["service.proto", "two/common.proto"]),
        ("two.Echo", ["service.proto", "two/common.proto"]),
        ("two.Echo.Unary", ["service.proto", "two/common.proto"]),
        ("two.Outer.inner", ["service.proto", "two/common.proto"]),
        ("two.Inner", ["two/common.proto"]),
        ("two.Kind", ["two/common.proto"]),
        ("two.KIND_NONE", ["two/common.proto"]),
    ],
)
def test_reflection_finds_symbols(symbol: str, files: list[str]) -> None:
    """Every kind of name resolves to its file and the imports of that file, in its own set."""
    response = ask_reflection(file_containing_symbol=symbol)
    found = response.file_descriptor_response.file_descriptor_proto
    assert files == [FileDescriptorProto.FromString(data).name for data in found]


def test_reflection_has_no_extensions() -> None:
    """A known type has no extensions; an unknown type and any extension are not found."""
    response = ask_reflection(all_extension_numbers_of_type="one.Outer")
    assert "one.Outer" == response.all_extension_numbers_response.base_type_name
    unknown = ask_reflection(all_extension_numbers_of_type="one.None")
    one = ask_reflection(
        file_containing_extension=reflection_pb2.ExtensionRequest(
            containing_type="one.Outer", extension_number=5
        )
    )
    symbol = ask_reflection(file_containing_symbol="one.Outer.")
    codes = [each.error_response.error_code for each in (unknown, one, symbol)]
    assert [grpc.StatusCode.NOT_FOUND.value[0]] * 3 == codes
    nothing = ask_reflection(host="me")
    assert grpc.StatusCode.INVALID_ARGUMENT.value[0] == nothing.error_response.error_code


async def test_reflection_rejects_invalid_requests() -> None:
    """Invalid bytes end the stream with INVALID_ARGUMENT."""
    with pytest.raises(WireError):
        SCHEMAS.answer(b"\x0a\xff")
    async with (
        serving(Answers(echo), extras=(REFLECTION.mount,)) as server,
        aio.insecure_channel(server.address) as channel,
    ):
        call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")()
        await call.write(b"\x0a\xff")
        with pytest.raises(aio.AioRpcError, match="not a ServerReflectionRequest"):
            await call.read()
