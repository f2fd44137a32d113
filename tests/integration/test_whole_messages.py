"""Before a server of the client's own protocol, messages and replies are those of the two sides."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.registry import PROTOCOLS, protocol
from gateway.wire.protobuf.plain import is_plain_message
from tests.integration.asking_kit import running
from tests.integration.whole_messages import (
    JSON,
    NOT_WHOLE,
    WAYS,
    Answer,
    Sent,
    Way,
    recording,
    send,
)

pytestmark = pytest.mark.asyncio


def config_of(way: Way, server: str, **target: Any) -> str:
    """Return the configuration of a gateway before a server."""
    name, _, carrier = way.url.partition("+")
    address: dict[str, Any] = {carrier: "127.0.0.1:0", "protocols": [name]}
    if carrier not in ("http", "grpc"):
        address = {"streams": [{"protocol": name, "address": "127.0.0.1:0"}]}
    listener: dict[str, Any] = {"name": "main", "default_model": "m", **address}
    if way.listener:
        listener["options"] = {name: dict(way.listener)}
    is_unix = server.startswith("/")
    upstream: dict[str, Any] = {"url": f"{way.url}{'+unix' * is_unix}://{server}"}
    if way.options:
        upstream["options"] = dict(way.options)
    document = {
        "version": "1",
        "listeners": [listener],
        "admin": {"address": "off"},
        "lifecycle": {"pre_stop": "0s", "drain": "1s"},
        "upstreams": {"server": upstream},
        "routes": [{"targets": [{"upstream": "server", **target}]}],
    }
    return yaml.safe_dump(document)


@asynccontextmanager
async def before(way: Way, server: str, **target: Any) -> AsyncIterator[str]:
    """Run a gateway before the server at an address or a socket, and yield its own address."""
    async with running(config_of(way, server, **target)) as gateway:
        yield next(iter(gateway.addresses.values()))


async def test_every_protocol_and_carrier_has_messages_or_a_reason() -> None:
    """A new protocol or carrier has messages, or loses none."""
    ways = {name.partition(" ")[0] for name in WAYS}
    for name in PROTOCOLS:
        carriers = {f"{name}.{each}" for each in protocol(name).carriers}
        assert carriers == carriers & (ways ^ {*NOT_WHOLE})


@pytest.mark.parametrize("name", WAYS)
async def test_messages_and_replies_pass_as_they_came(name: str) -> None:
    """The server receives what the client sent, and the client what the server sent."""
    way = WAYS[name]
    async with recording(way) as server, before(way, server.address) as front:
        for key, message in way.messages.items():
            direct = await send(way, server.address, message)
            server.seen.clear()
            through = await send(way, front, message)
            path = way.at_server.get(message.path, message.path)
            assert [message._replace(path=path)] == server.seen, key
            assert direct == through, key


@asynccontextmanager
async def unix_relay(address: str, path: Path) -> AsyncIterator[None]:
    """Make a server of TCP reachable at a unix socket, too."""
    host, _, port = address.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, other), pump(other_reader, writer))

    async with await asyncio.start_unix_server(relay, path):
        yield


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.carrier != "tcp"])
async def test_messages_pass_over_a_unix_socket(name: str, tmp_path: Path) -> None:
    """Each carrier reaches a server at a unix socket as it reaches one at a port."""
    way, path = WAYS[name], tmp_path / "server.sock"
    async with (
        recording(way) as server,
        unix_relay(server.address, path),
        before(way, str(path)) as front,
    ):
        for key, message in way.messages.items():
            direct = await send(way, server.address, message)
            assert direct == await send(way, front, message), key


@pytest.mark.parametrize("name", WAYS)
async def test_a_route_changes_the_model_alone(name: str) -> None:
    """The server gets the target's name of the model, and the client its own."""
    way = WAYS[name]
    async with recording(way) as server, before(way, server.address, model="other") as front:
        for key, message in way.messages.items():
            server.seen.clear()
            direct = await send(way, server.address, message)
            server.seen.clear()
            through = await send(way, front, message)
            if key in way.rebuilt:
                assert message not in server.seen
                continue
            assert direct == through or _same(direct.body, through.body), key
            (seen,) = server.seen
            assert not re.search("/m(?![a-z])", seen.path), key


# Broken or doubled members, another charset, numbers beyond all types, no text at all.
UNREAD_JSON = (
    *(b"not json", b'{"a":1', b'{"a":1,"a":2}', b"\xff\xfe", b'\xef\xbb\xbf{"predictions":[1]}'),
    *(b'{"predictions":[NaN]}', b'{"data":[1e999]}', b'{"choices":[],"data":[]}', b"null", b""),
)
UNREAD_PROTO = (b"\x0a\x7f", b"\xff", b"\x08\x01", b"\x0a\x02\xff\xff", b"")
# Its status is in a header, without which the server is another one.
UNREAD_WAYS = [name for name in WAYS if name != "trtis.http" and "tcp" not in name]


@pytest.mark.parametrize("name", UNREAD_WAYS)
async def test_an_unreadable_reply_reaches_the_client(name: str) -> None:
    """The gateway is not the only strict one between two tolerant sides."""
    way = WAYS[name]
    bodies = UNREAD_JSON if way.carrier == "http" else UNREAD_PROTO
    key, message = next((key, one) for key, one in way.messages.items() if one.method == "POST")
    async with recording(way) as server, before(way, server.address) as front:
        usual = server.answer
        for status, body in product((200, 500, 404) if way.carrier == "http" else (0,), bodies):
            kind = "0 0" if way.carrier == "brpc" else JSON
            odd = Answer(status, body, kind)
            server.answer = lambda sent, odd=odd: odd if sent.method == "POST" else usual(sent)  # type: ignore[method-assign, misc]
            direct = await send(way, server.address, message)
            assert direct == await send(way, front, message), (key, status, body)


def _has_body(sent: Sent) -> bool:
    return bool(sent.body)


def _same(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return sorted(one) == sorted(other)  # fields of protobuf have no order


def _doubled_keys(body: bytes) -> Iterator[bytes]:
    """Yield a text of JSON with one of its keys twice, first or last, plain or escaped."""
    for at in range(len(body)):
        if body[at : at + 1] != b"{" or body[at + 1 : at + 2] == b"}":
            continue
        try:
            key = json.loads(body[at:].partition(b":")[0][1:])
        except ValueError:
            continue
        for text in (json.dumps(key), '"' + "".join(f"\\u{ord(each):04x}" for each in key) + '"'):
            yield body[: at + 1] + text.encode() + b":[9]," + body[at + 1 :]


def _doubled_fields(body: bytes, message: Any) -> Iterator[bytes]:
    """Yield a message with a field twice, a length that lies, and a value of another type."""
    for field in message.fields:
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            inner = bytes([field.number << 3 | 2, 2, 0x0A, 0])
            yield body + inner
            yield inner + body
        elif field.message_type is not None:
            twice = bytes([field.number << 3 | 2, 3, 0x0A, 1, ord("x")])
            yield body + twice + twice
    yield body + bytes([0x0A, 0x7F])
    yield body + bytes([0x08, 1])
    yield body[:-1]


OF_JSON = [
    name
    for name, way in WAYS.items()
    if any(
        each.kind == "application/json" and each.body and not way.schema
        for each in way.messages.values()
    )
]


@pytest.mark.parametrize("name", OF_JSON)
async def test_no_key_passes_twice(name: str) -> None:
    """A server whose reader takes the first or the last of equal keys reads what was checked."""
    way = WAYS[name]
    async with recording(way) as server, before(way, server.address) as front:
        server.seen.clear()
        count = 0
        for message in way.messages.values():
            if message.kind != "application/json":
                continue
            for body in _doubled_keys(message.body):
                count += 1
                await send(way, front, message._replace(body=body))
        assert count
        for seen in filter(_has_body, server.seen):
            pairs: list[Any] = []
            json.loads(seen.body, object_pairs_hook=pairs.append)
            for each in pairs:
                assert len({key for key, _ in each}) == len(each), seen.body


@pytest.mark.parametrize("name", [name for name in WAYS if WAYS[name].schema])
async def test_no_field_passes_twice(name: str) -> None:
    """A server whose reader takes the first or the last of equal fields reads what was checked."""
    way = WAYS[name]
    assert way.schema is not None
    async with recording(way) as server, before(way, server.address) as front:
        server.seen.clear()
        message = next(iter(way.messages.values()))
        for body in _doubled_fields(message.body, way.schema.DESCRIPTOR):
            await send(way, front, message._replace(body=body))
        for seen in server.seen:
            assert is_plain_message(memoryview(seen.body), way.schema.DESCRIPTOR), seen.body


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        (b"\x0a\x03\x0a\x01m", True),
        (b"\x0a\x03\x0a\x01m\x0a\x03\x0a\x01n", False),
        (b"\x0a\x06\x0a\x01m\x0a\x01n", False),
        (b"\x0a\x03\x0a\x01\xff", False),
        (b"\x08\x01", False),
        (b"\x0a\x7f", False),
        (b"\x12\x03\x0a\x01x\x12\x03\x0a\x01y", True),
        (b"\x12\x03\x0a\x01x\x12\x03\x0a\x01x", False),
        (b"\x12\x0b\x0a\x01x\x12\x06\x08\x81\x80\x80\x80\x10", False),
        (b"\x33\x34", False),
        (b"\x12\x02\x12\x00\x12\x04\x0a\x00\x12\x00", False),
        (b"\x12\x06\x08\xff\xff\xff\xff\x7f", False),
    ],
)
async def test_plain_messages_of_protobuf(text: bytes, is_plain: bool) -> None:
    """A field twice, a key of a map twice, a wrong type, and a value beyond its type are not.

    An absent key is an empty one, and no number of a key counts as a size.
    """
    schema = WAYS["tfs.grpc"].schema
    assert schema is not None
    assert is_plain is is_plain_message(memoryview(text), schema.DESCRIPTOR)


CHANGES: dict[str, dict[str, Any]] = {
    "tensors": {
        "routes": [{"targets": [{"upstream": "server", "tensors": {"inputs": {"x": "z"}}}]}]
    },
    "cache": {"models": {"m": {"cache": {"max_bytes": 1000}}}},
    "batching": {"models": {"m": {"batching": {}}}},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", WAYS)
async def test_what_changes_tensors_rewrites_the_message(name: str, change: str) -> None:
    """The server gets a message of the gateway, or the client an error; no bytes are sent on."""
    way = WAYS[name]
    async with recording(way) as server:
        document = {**yaml.safe_load(config_of(way, server.address)), **CHANGES[change]}
        async with running(yaml.safe_dump(document)) as gateway:
            address = next(iter(gateway.addresses.values()))
            server.seen.clear()
            for key, message in way.messages.items():
                # Bytes are the tensor itself, so that a message written anew has them.
                is_question = "metadata" in key or "status" in key or key == "raw bytes"
                if message.method == "POST" and "expla" not in message.path and not is_question:
                    found = await send(way, address, message)
                    assert b"internal" not in found.body
                    assert message.body not in {each.body for each in server.seen}


@pytest.mark.parametrize("name", WAYS)
async def test_a_message_of_another_protocol_is_never_sent_on(name: str) -> None:
    """A server of another protocol gets a message of its own, or the client an error."""
    way = WAYS[name]
    other = WAYS["torchserve.http" if not name.startswith("torchserve") else "mlflow.http"]
    async with recording(other) as server:
        document = yaml.safe_load(config_of(way, server.address))
        document["upstreams"]["server"] = {"url": f"{other.url}://{server.address}"}
        async with running(yaml.safe_dump(document)) as gateway:
            server.seen.clear()
            for message in way.messages.values():
                found = await send(way, next(iter(gateway.addresses.values())), message)
                assert message not in server.seen
                assert b"Request " not in found.body
                assert b"internal" not in found.body
