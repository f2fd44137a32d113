"""Every call of a client stands in the stock and in the capture, read or not, in all protocols."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from msgspec.structs import replace  # noqa: TID251  # rows have no wire origin

from gateway.app import Gateway, complete_service, connect
from gateway.migration.callers.inventory import StockRow, merged_rows
from gateway.migration.captures.capture import Capture
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.tensors import Outcome
from gateway.migration.replay.forwarded import codec_of
from gateway.migration.replay.replay import Replay, ReplayOptions, ReplayReport
from gateway.registry import PROTOCOLS, protocol
from gateway.settings.units import Url, parse_url
from gateway.shadow.records.records import RecordedCall
from gateway.wire.errors import SUCCESSES
from tests.integration.asking_kit import running
from tests.integration.cli_kit import gateway as gateway_command
from tests.integration.migration.mirror_kit import evidence, is_balanced, until
from tests.integration.test_whole_messages import config_of
from tests.integration.whole_messages import (
    WAYS,
    Answer,
    RecordingServer,
    Sent,
    post,
    recording,
    send,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

_GARBAGE = b"\xff"
ERRORS_IN_REPLIES = frozenset({"graphpipe", "trtis"})
"""Their errors have the status of a success."""


def with_books(directory: Path, text: str, payload: str = "full") -> str:
    """Return a configuration that counts and records all calls."""
    capture = {"directory": str(directory / "capture"), "payload": payload, "min_free": 0}
    books = {"state": {"directory": str(directory / "state")}, "stock": {}, "capture": capture}
    return yaml.safe_dump({**yaml.safe_load(text), **books})


def books(directory: Path) -> tuple[list[StockRow], list[RecordedCall]]:
    """Return the rows of the stock and the calls of the capture."""
    calls = list(Capture(directory / "capture").calls())
    return merged_rows(directory / "state"), calls


def codec_name(name: str) -> str:
    """Return the codec of a way, by the name of the way."""
    return codec_of(parse_url(f"{WAYS[name].url}://127.0.0.1:1"), WAYS[name].options).name


def is_call(sent: Sent) -> bool:
    """Return whether a message asks for more than facts about a model or the server."""
    return bool(sent.body) and not any(each in sent.path for each in ("etadata", "Status"))


def counts(rows: list[StockRow]) -> Counter[str]:
    """Return the sums of the rows."""
    names = ("calls", "errors", "forwarded", "refused")
    return Counter({name: sum(getattr(row, name) for row in rows) for name in names})


@pytest.mark.parametrize("payload", ["full", "none"])
@pytest.mark.parametrize("name", WAYS)
async def test_messages_of_every_protocol_are_in_the_books(
    tmp_path: Path, name: str, payload: str
) -> None:
    """What is read and what is sent on unread is counted once, and recorded once."""
    way = WAYS[name]
    async with recording(way) as server:
        text = with_books(tmp_path, config_of(way, server.address), payload)
        async with running(text) as gateway:
            front = next(iter(gateway.addresses.values()))
            server.seen.clear()
            for message in way.messages.values():
                await send(way, front, message)
            arrived = [each for each in server.seen if is_call(each)]
    rows, calls = books(tmp_path)
    found = counts(rows)
    questions = {each.body for key, each in way.messages.items() if "metadata" in key}
    expected = [
        each for each in way.messages.values() if is_call(each) and each.body not in questions
    ]
    # The gateway itself asks about models whose tensors are recorded.
    bodies = {each.body for each in expected}
    arrived = [each for each in arrived if each.body in bodies]
    assert (len(arrived), found["calls"], len(calls)) == (len(expected),) * 3
    assert {row.protocol for row in rows} == {call.call.protocol for call in calls}
    assert {row.protocol for row in rows} == {codec_name(name)}
    assert {row.client for row in rows} == {"127.0.0.1"}
    forwarded = [call for call in calls if call.is_forwarded]
    # A reply that nobody here can read makes a call of tensors one of bytes.
    assert found["forwarded"] <= len(forwarded)
    assert all(row.path for row in rows if row.forwarded)
    recorded = {each.body for call in forwarded for each in call.wire if each.side == "request"}
    assert all(call.missing for call in forwarded)
    assert recorded <= bodies
    assert bool(recorded) is bool(forwarded and payload == "full")


async def _refused_paths(name: str, carrier: str, address: str) -> Counter[str]:
    """Send what nobody can read to each path of a protocol; return whose request is invalid."""
    spec = protocol(name)
    refused: Counter[str] = Counter()
    if carrier == "http":
        assert spec.http is not None
        claims = {each.path for each in spec.http.all_claims({})}
        async with aiohttp.ClientSession() as session:
            for path in sorted(claims):
                async with session.post(f"http://{address}{path}/m", data=_GARBAGE) as response:
                    refused[f"{path}/m"] += 400 <= response.status < 500
        return +refused
    assert spec.grpc is not None
    async with grpc.aio.insecure_channel(address) as channel:
        for method in spec.grpc.methods:
            try:
                await channel.unary_unary(method)(_GARBAGE, timeout=10)
            except grpc.aio.AioRpcError as error:
                code = error.code()
                refused[method] += code is grpc.StatusCode.INVALID_ARGUMENT
    return +refused


CARRIERS = [
    (name, carrier)
    for name in PROTOCOLS
    for carrier in protocol(name).carriers
    if carrier in {"http", "grpc"}
]


@pytest.mark.parametrize(("name", "carrier"), CARRIERS)
async def test_refused_requests_are_in_the_books(tmp_path: Path, name: str, carrier: str) -> None:
    """A refused request has a row with its path and its error, and a record."""
    document: dict[str, Any] = {
        "version": "1",
        "listeners": [{"name": "main", carrier: "127.0.0.1:0", "protocols": [name]}],
        "admin": {"address": "off"},
        "lifecycle": {"pre_stop": "0s", "drain": "1s"},
        "upstreams": {"server": {"url": "oip+grpc://127.0.0.1:1"}},
    }
    async with running(with_books(tmp_path, yaml.safe_dump(document))) as gateway:
        refused = await _refused_paths(name, carrier, next(iter(gateway.addresses.values())))
    rows, calls = books(tmp_path)
    counted = Counter({row.path: row.refused for row in rows if row.refused})
    assert counted
    assert refused or name in ERRORS_IN_REPLIES
    assert refused == Counter({path: counted[path] for path in refused})
    # Where any bytes are a request, a row is one of a server that cannot be reached.
    assert all(row.errors == row.refused for row in rows if row.path in counted)
    assert {row.protocol for row in rows} == {f"{name}.{carrier}"}
    recorded = [call for call in calls if not call.call.kind]
    assert len(recorded) == counts(rows)["refused"]
    assert all(call.is_refused and call.missing == "refused by the gateway" for call in recorded)


async def test_a_passthrough_is_in_the_books(tmp_path: Path) -> None:
    """A request to a path of no protocol has a row with its model; one that the rules refuse, too."""
    way = WAYS["tfs.http"]
    async with recording(way) as server:
        document = yaml.safe_load(config_of(way, server.address))
        rules = {"upstream": "server", "post": ["/v1/models/*"]}
        document["listeners"] = [
            {"http": "127.0.0.1:0", "protocols": ["oip"], "passthrough": rules}
        ]
        async with running(with_books(tmp_path, yaml.safe_dump(document))) as gateway:
            front = gateway.addresses["main.http"]
            body = b'{"instances": [[1.0]]}'
            passed = await send(way, front, post("/v1/models/m:predict", body))
            refused = await send(way, front, post("/elsewhere", body))
    rows, (call, other) = books(tmp_path)
    found = {row.path: (row.model, row.forwarded, row.refused) for row in rows}
    assert (other.is_refused, other.missing) == (True, "refused by the gateway")
    assert (200, 405) == (passed.status, refused.status)
    assert {"/v1/models/m:predict": ("m", 1, 0), "/elsewhere": ("", 0, 1)} == found
    request, reply = call.wire
    assert (call.is_forwarded, call.call.model, call.call.target) == (True, "m", "server")
    assert (request.body, reply.body) == (body, passed.body)


async def replayed(url: Url, options: Mapping[str, Any], calls: list[RecordedCall]) -> ReplayReport:
    """Send recorded calls to a server."""
    connected = connect(url, options=options)
    service = complete_service(connected, url, {})
    replay = Replay(service, ReplayOptions(), OutputRules(), codec=codec_of(url, options))
    try:
        return await replay.run(iter(calls))
    finally:
        await connected.close()


def differing(record: RecordedCall) -> RecordedCall:
    """Return a recorded call whose reply was another one."""
    rows = [replace(row, body=b"[7]") if row.side == "reply" else row for row in record.wire]
    return replace(record, wire=rows)


@pytest.mark.parametrize("name", WAYS)
async def test_forwarded_calls_are_replayed_to_servers_of_their_form(
    tmp_path: Path, name: str
) -> None:
    """Such a server gets the same bytes; its reply is compared number by number."""
    way = WAYS[name]
    async with recording(way) as server:
        text = with_books(tmp_path, config_of(way, server.address))
        async with running(text) as gateway:
            front = next(iter(gateway.addresses.values()))
            for message in way.messages.values():
                await send(way, front, message)
        calls = [each for each in Capture(tmp_path / "capture").calls() if each.is_forwarded]
        bodies = [each.body for call in calls for each in call.wire if each.side == "request"]
        server.seen.clear()
        address = parse_url(f"{way.url}://{server.address}")
        found = await replayed(address, way.options, calls)
        other = await replayed(address, way.options, [differing(each) for each in calls])
        sent = [each.body for each in server.seen]
    assert (found.sent, found.left_out, found.failed) == (len(calls), {}, 0)
    assert [each for each in sent if each in bodies] == bodies * 2
    assert found.summary.outcomes.get(Outcome.MATCH, 0) == len(calls)
    errors = sum(call.error_code is not None for call in calls)
    assert other.summary.outcomes.get(Outcome.MATCH, 0) == errors


async def test_a_passthrough_is_replayed_and_compared(tmp_path: Path) -> None:
    """The codec of the server that gets the call says what it is; a capture compares with itself."""
    way = WAYS["tfs.http kserve"]
    async with recording(way) as server:
        document = yaml.safe_load(config_of(way, server.address))
        rules = {"upstream": "server", "post": ["/v1/models/*"]}
        document["listeners"] = [
            {"http": "127.0.0.1:0", "protocols": ["oip"], "passthrough": rules}
        ]
        async with running(with_books(tmp_path, yaml.safe_dump(document))) as gateway:
            for path in ("predict", "explain"):
                message = post(f"/v1/models/m:{path}", b'{"instances": [[1.0]], "own": 1}')
                await send(way, gateway.addresses["main.http"], message)
        calls = list(Capture(tmp_path / "capture").calls())
        url = parse_url(f"{way.url}://{server.address}")
        found = await replayed(url, way.options, calls)
        other = await replayed(url, way.options, [differing(each) for each in calls])
        arrived = [each.path for each in server.seen if is_call(each)]
    assert (found.sent, found.left_out) == (2, {})
    assert found.summary.outcomes == {Outcome.MATCH: 2}
    assert Outcome.MATCH not in other.summary.outcomes
    assert arrived == ["/v1/models/m:predict", "/v1/models/m:explain"] * 3
    capture = str(tmp_path / "capture")
    same = gateway_command("diff", capture, capture, "--output", "json")
    assert json.loads(same.stdout)["outcomes"]["match"] == 2, same.stderr


async def test_replayed_servers_have_the_options_of_their_upstreams(tmp_path: Path) -> None:
    """A path of another dialect reaches the server whose upstream names it; else the hint stands."""
    way = WAYS["tfs.http kserve"]
    async with recording(way) as server:
        text = with_books(tmp_path, config_of(way, server.address))
        async with running(text) as gateway:
            front = next(iter(gateway.addresses.values()))
            await send(way, front, way.messages["explain"])
        document = yaml.safe_load(text)
        targets = [{"upstream": "server"}, {"upstream": "new", "weight": 0}]
        document["routes"] = [{"name": "m", "targets": targets}]
        document["upstreams"]["new"] = {
            "url": f"{way.url}://127.0.0.1:1",
            "options": {"dialect": "kserve"},
        }
        document["migrations"] = {"m": {"route": "m", "old": "server", "new": "new"}}
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump(document))
        against = [
            "replay",
            str(tmp_path / "capture"),
            "--against",
            f"{way.url}://{server.address}",
        ]
        named = [*against, "--compare", f"{file}#m", "--output", "json"]
        found = await asyncio.to_thread(gateway_command, *named)
        plain = await asyncio.to_thread(gateway_command, *against)
        paths = [each.path for each in server.seen if is_call(each)]
    assert json.loads(found.stdout)["outcomes"]["match"] == 1, found.stderr
    assert paths == ["/v1/models/m:explain"] * 2
    assert (plain.returncode, "--compare FILE#NAME" in plain.stdout) == (1, True)


class PlantedServer(RecordingServer):
    """A server whose replies are other ones once it *differs*."""

    differs = False

    def answer(self, sent: Sent) -> Answer:
        """Return another reply that a gateway sends on."""
        found, body = super().answer(sent), b"[7]"
        if not self.differs or found.status not in {0, *SUCCESSES} or not is_call(sent):
            return found
        if found.body and not found.body.startswith(b"{"):
            body = found.body.replace(b"own", b"oWn").replace(b"one", b"two")
            body = body.replace(b"\x00\xff", b"\x01\xff").replace(b"@@", b"A@")
        return found._replace(status=min(found.status, 200), body=body)  # 204 has no body


class Mirrored:
    """A gateway that mirrors calls of some ways to other servers.

    Attributes:
        gateway: It has a listener, a route and a migration for each way.
        servers: The new servers, by way.
    """

    def __init__(self, gateway: Gateway, servers: Mapping[str, PlantedServer]) -> None:
        self.gateway = gateway
        self.servers = servers

    async def send(self) -> dict[str, tuple[int, int, int]]:
        """Send all messages of clients; return the counts of each way when all have results.

        They are those of forwarded replies that are compared, of those that differ, and of calls
        that are left out as forwarded.
        """
        for place, name in enumerate(self.servers):
            way = WAYS[name]
            front = next(
                address
                for listener, address in self.gateway.addresses.items()
                if listener.startswith(f"l{place}.")
            )
            for message in way.messages.values():
                await send(way, front, message)
        counted = await until(self.gateway, is_balanced)
        found = {}
        for place, name in enumerate(self.servers):
            label = f'{{migration="m{place}",'
            results = Counter[str]()
            for key, value in counted.items():
                if label in key:
                    results[key.replace(label, "{")] += int(value)
            outcomes = sum(it for key, it in results.items() if "samples_total" in key)
            document = await evidence(self.gateway, partial(_has_compared, outcomes), f"m{place}")
            rows = [each for each in document["outputs"] if each["name"] == "reply"]
            compared = sum(each["compared"] for each in rows)
            mismatched = sum(each["mismatched"] for each in rows)
            forwarded = results['gateway_migration_skipped_total{reason="forwarded"}']
            found[name] = compared, mismatched, forwarded
        return found


def _has_compared(count: int, document: Mapping[str, Any]) -> bool:
    return bool(document["compared"] == count)


@asynccontextmanager
async def mirrored(
    directory: Path, names: Sequence[str], *, is_same: bool
) -> AsyncIterator[Mirrored]:
    """Run a gateway whose new targets speak the protocol of the client, or another one."""
    document: dict[str, Any] = {"listeners": [], "upstreams": {}, "routes": [], "migrations": {}}
    servers = {}
    async with AsyncExitStack() as stack:
        for place, name in enumerate(names):
            other = name if is_same else "torchserve.http"
            if other == name and not is_same:
                other = "mlflow.http"
            old = await stack.enter_async_context(recording(WAYS[name]))
            new = await stack.enter_async_context(recording(WAYS[other], PlantedServer))
            assert isinstance(new, PlantedServer)
            servers[name] = new
            base = yaml.safe_load(config_of(WAYS[name], old.address))
            (listener,) = base.pop("listeners")
            document["listeners"].append({**listener, "name": f"l{place}"})
            fresh = yaml.safe_load(config_of(WAYS[other], new.address))["upstreams"]["server"]
            upstreams = {f"o{place}": base.pop("upstreams")["server"], f"n{place}": fresh}
            document["upstreams"].update(upstreams)
            targets = [{"upstream": f"o{place}"}, {"upstream": f"n{place}", "weight": 0}]
            match = {"protocol": codec_name(name)}
            document["routes"].append({"name": f"r{place}", "match": match, "targets": targets})
            document["migrations"][f"m{place}"] = {
                "route": f"r{place}",
                "old": f"o{place}",
                "new": f"n{place}",
                "sample": {"percent": 100, "per_second": 100_000},
                "compare": {"default": {"atol": 0.01}},
            }
            document = {**base, **document, "admin": {"address": "127.0.0.1:0"}}
        text = with_books(directory, yaml.safe_dump(document))
        yield Mirrored(await stack.enter_async_context(running(text)), servers)


def forwarded_calls(directory: Path, names: Sequence[str]) -> dict[str, list[RecordedCall]]:
    """Return the forwarded calls of the capture, by the way."""
    _, calls = books(directory)
    return {
        name: [
            each for each in calls if each.is_forwarded and each.call.protocol == codec_name(name)
        ]
        for name in names
    }


def bodies_of(calls: Sequence[RecordedCall]) -> set[bytes]:
    """Return the bodies of the requests."""
    return {each.body for call in calls for each in call.wire if each.side == "request"}


# Routes tell protocols apart, and no dialects.
GROUPS = [[name for name in WAYS if " " not in name], [name for name in WAYS if " " in name]]


@pytest.mark.parametrize("names", GROUPS, ids=["protocols", "dialects"])
async def test_forwarded_calls_are_mirrored_to_targets_of_their_form(
    tmp_path: Path, names: list[str]
) -> None:
    """In every protocol, the new target gets the same bytes, and its replies are compared."""
    async with mirrored(tmp_path, names, is_same=True) as mirror:
        equal = await mirror.send()
        seen = {name: {each.body for each in it.seen} for name, it in mirror.servers.items()}
        for server in mirror.servers.values():
            server.differs = True
        both = await mirror.send()
    calls = forwarded_calls(tmp_path, names)
    # Both rounds have the same calls; an error has no reply.
    counted = {
        name: sum(each.error_code is None for each in found) // 2 for name, found in calls.items()
    }
    assert any(counted.values())
    assert {name: (count, 0, 0) for name, count in counted.items()} == equal
    assert {name: (2 * count, count, 0) for name, count in counted.items()} == both
    assert all(bodies_of(found) <= seen[name] for name, found in calls.items())


@pytest.mark.parametrize("names", GROUPS, ids=["protocols", "dialects"])
async def test_forwarded_calls_are_counted_before_targets_of_other_protocols(
    tmp_path: Path, names: list[str]
) -> None:
    """No other target gets them, and each is one of `forwarded`."""
    async with mirrored(tmp_path, names, is_same=False) as mirror:
        found = await mirror.send()
        seen = {name: {each.body for each in it.seen} for name, it in mirror.servers.items()}
    calls = forwarded_calls(tmp_path, names)
    assert {name: (0, 0, len(each)) for name, each in calls.items()} == found
    assert all(bodies_of(each).isdisjoint(seen[name]) for name, each in calls.items())
