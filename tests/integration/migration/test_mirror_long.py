"""Live mirroring beyond small calls: large bodies, sequences and streams."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import yaml

from gateway.app import Gateway, complete_service, connect
from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensors.tensor import array_tensor, as_items, as_numpy
from gateway.schema import open_inference_pb2 as pb
from gateway.settings.units import parse_url
from gateway.shadow.draw import draw
from tests.integration.asking_kit import WHOLE, running, urls
from tests.integration.cut_kit import MIB, Far, request
from tests.integration.http_kit import Answer, Raw, eventually
from tests.integration.migration import mirror_kit as kit
from tests.integration.reload_kit import reloadable_beside

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HTTP_LISTENER = """
version: "1"
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
"""

# -- large bodies


def large_config(old: Far, new: Far, **migration: Any) -> str:
    config = yaml.safe_load(
        kit.migration_config(
            f"oip+{old.url}", f"oip+{new.url}", versions=(None, None), compare={}, **migration
        )
    )
    for upstream in config["upstreams"].values():
        upstream["options"] = {"dialect": "unknown"}
    return yaml.safe_dump(config)


async def send_in_two_parts(gateway: Gateway, old: Far, data: bytes, request_id: str) -> Answer:
    """Send a body whose last bytes follow when the old server has its first ones."""
    head, body = request(("a", "UINT8", data), headers=(f"x-request-id: {request_id}",))
    host, _, port = gateway.addresses["main.http"].rpartition(":")
    raw = Raw(*await asyncio.open_connection(host, int(port)))
    await raw.send(head + body[:1000])
    await eventually(lambda: any(seen.body.endswith(body[:1000]) for seen in old.seen))
    await raw.send(body[1000:])
    async with asyncio.timeout(45):
        found = await raw.answer()
    await raw.close()
    return found


def received(server: Far) -> list[bytes]:
    """Return the elements of all inferences that a server received."""
    return [seen.binary for seen in server.seen if seen.on_headers.startswith("POST")]


@pytest.mark.parametrize("value", [7, 8])
@pytest.mark.parametrize("large", ["tee", "skip"])
async def test_streaming_body_is_teed_or_skipped(large: str, value: int) -> None:
    """The client's response is unchanged; the new server gets the whole body or nothing."""
    bodies = [os.urandom(3 * MIB) for _ in range(2)]
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(Far())
        new = await stack.enter_async_context(Far(value=value))
        text = large_config(old, new, mirror={"large": large})
        config = yaml.safe_load(text)
        del config["migrations"]
        mirrored = await stack.enter_async_context(running(text))
        plain = await stack.enter_async_context(running(yaml.safe_dump(config)))
        for number, data in enumerate(bodies):
            found = await send_in_two_parts(mirrored, old, data, f"r{number}")
            old.seen.clear()
            expected = await send_in_two_parts(plain, old, data, f"r{number}")
            old.seen.clear()
            assert found.status == expected.status == 200
            assert found.body == expected.body
            fields = [
                [field for field in each.headers.pairs if field[0].lower() != "date"]
                for each in (found, expected)
            ]
            assert fields[0] == fields[1]
        counts = await kit.until(
            mirrored,
            lambda found: (
                kit.is_balanced(found) and kit.total(found, "gateway_migration_sampled_total") == 2
            ),
        )
    if large == "skip":
        assert received(new) == []
        assert counts['gateway_migration_skipped_total{migration="digits",reason="arriving"}'] == 2
    else:
        assert sorted(received(new)) == sorted(bodies)
        outcome = "match" if value == 7 else "mismatch"
        name = f'gateway_migration_samples_total{{migration="digits",outcome="{outcome}"}}'
        assert counts[name] == 2


# -- sequences

SEQUENCES, STEPS = 24, 5


def total_server() -> str:
    model = {"backend": "python", "options": {"callable": "gateway.backends.examples:SequenceSum"}}
    return yaml.safe_dump({**yaml.safe_load(HTTP_LISTENER), "models": {"total": model}})


def step(sequence: int, number: int) -> pb.ModelInferRequest:
    """Return call *number* of a sequence; no two calls have the same value."""
    call = pb.ModelInferRequest(model_name="total", id=f"{sequence}-{number}")
    call.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
    call.raw_input_contents.append((10**number * (1 + sequence)).to_bytes(4, "little"))
    call.parameters["sequence_id"].int64_param = sequence
    call.parameters["sequence_start"].bool_param = number == 0
    call.parameters["sequence_end"].bool_param = number == STEPS - 1
    return call


async def sums(gateway: Gateway) -> dict[str, int]:
    """Send all calls of all sequences, interleaved, on one stream; return the replies by id."""

    async def calls() -> AsyncIterator[pb.ModelInferRequest]:
        for number in range(STEPS):
            for sequence in range(1, SEQUENCES + 1):
                yield step(sequence, number)

    found = {}
    async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        method = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        async for reply in method(calls(), timeout=60):
            assert not reply.error_message
            response = reply.infer_response
            found[response.id] = int.from_bytes(response.raw_output_contents[0], "little")
    return found


@pytest.mark.parametrize("sequences", ["whole", "skip"])
async def test_sampled_sequences_are_mirrored_whole_and_in_order(sequences: str) -> None:
    """The sums of every drawn sequence agree, and no other sequence is mirrored."""
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(running(total_server()))
        new = await stack.enter_async_context(running(total_server()))
        text = kit.migration_config(
            urls(old, "total")["oip.grpc"],
            urls(new, "total")["oip.grpc"],
            versions=(None, None),
            sample={"percent": 50, "per_second": 100_000},
            mirror={"sequences": sequences},
            compare={},
        )
        gateway = await stack.enter_async_context(running(text))
        found = await sums(gateway)
        drawn = [
            each
            for each in range(1, SEQUENCES + 1)
            if draw(repr(("anonymous", "total", each)), kit.NAME) < 0.5
        ]
        assert 0 < len(drawn) < SEQUENCES
        counts = await kit.until(
            gateway,
            lambda found: (
                kit.is_balanced(found)
                and kit.total(found, "gateway_migration_sampled_total") == STEPS * len(drawn)
            ),
        )
    assert found == {
        f"{sequence}-{number}": int("1" * (number + 1)) * (1 + sequence)
        for sequence in range(1, SEQUENCES + 1)
        for number in range(STEPS)
    }
    if sequences == "whole":
        name = 'gateway_migration_samples_total{migration="digits",outcome="match"}'
    else:
        name = 'gateway_migration_skipped_total{migration="digits",reason="sequence"}'
    assert counts[name] == STEPS * len(drawn)


def send_steps(address: str, sequences: int) -> None:
    """Send all calls of some sequences, each on a connection of its own."""
    for sequence in range(1, sequences + 1):
        for number in range(STEPS):
            tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "INT32", "data": [number + 1]}
            flags = {"sequence_start": number == 0, "sequence_end": number == STEPS - 1}
            body = {"inputs": [tensor], "parameters": {"sequence_id": sequence, **flags}}
            with closing(HTTPConnection(address, timeout=60)) as connection:
                connection.request("POST", "/v2/models/total/infer", json.dumps(body))
                assert connection.getresponse().status == 200


@pytest.mark.parametrize(("per_second", "is_whole"), [(100_000, True), (0.5, False)])
async def test_calls_of_a_sequence_through_two_workers_agree(
    tmp_path: Path, per_second: float, is_whole: bool
) -> None:
    """They reach the other target in their order, and none behind one that a worker has lost."""
    sequences = 8
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(running(total_server()))
        new = await stack.enter_async_context(running(total_server()))
        text = kit.migration_config(
            urls(old, "total")["oip.grpc"],
            urls(new, "total")["oip.grpc"],
            versions=(None, None),
            sample={"percent": 100, "per_second": per_second},
            mirror={"sequences": "whole", "timeout": "60s"},
            compare={},
            more={"workers": 2},
        )
        gateway = await stack.enter_async_context(reloadable_beside(tmp_path / "g.yaml", text))
        address = gateway.running.addresses["main.http"]
        await asyncio.to_thread(send_steps, address, sequences)

        async def evidence() -> Any:
            _, page = await asyncio.to_thread(
                gateway.admin, "GET", f"/api/v1/migrations/{kit.NAME}"
            )
            found = page["evidence"]  # none before the first report
            has_all = found and found["sampled"] == STEPS * sequences and not found["in_flight"]
            return found if has_all else {}

        found = await eventually(evidence, 60)
    outcomes = {name: count for name, count in found["outcomes"].items() if count}
    assert outcomes.keys() <= {"match"}
    assert (outcomes.get("match", 0) == STEPS * sequences) is is_whole


# -- streams

MODELS = {
    "speak": "gateway.backends.examples:speak",
    "letters": "tests.integration.streaming_models:letters",
    "shouts": "tests.integration.streaming_models:shouts",
    "repeat": "gateway.backends.examples:repeat_stream",
    "again": "gateway.backends.examples:repeat_stream",
}
STREAMS = {
    # Name of the route: old model, new model, `streams`, the outcome.
    "joined": ("speak", "letters", "join", "match"),
    "counted": ("speak", "letters", "items", "structure"),
    "wrong": ("speak", "shouts", "join", "mismatch"),
    "numbers": ("repeat", "again", "join", "match"),
}
TEXT = "a stream of some words"


def stream_config(url: str) -> str:
    config = yaml.safe_load(kit.migration_config(url, url, compare={}))
    migration = config["migrations"].pop(kit.NAME)
    config["routes"] = []
    for name, (old, new, streams, _) in STREAMS.items():
        targets = [
            {"upstream": "legacy", "model": old},
            {"upstream": "fresh", "model": new, "weight": 0},
        ]
        config["routes"].append({"name": name, "match": {"model": name}, "targets": targets})
        config["migrations"][name] = {
            **migration,
            "route": name,
            "old": f"legacy/{old}",
            "new": f"fresh/{new}",
            "mirror": {"streams": streams},
        }
    return yaml.safe_dump(config)


async def stream_over_grpc(gateway: Gateway, model: str) -> list[Any]:
    """Return the replies of a stream over gRPC."""
    url = parse_url(urls(gateway, model)["oip.grpc"])
    connected = connect(url)
    if model == "numbers":
        tensor = array_tensor("IN", np.arange(5, dtype=np.int32))
    else:
        tensor = array_tensor("text", np.array([TEXT.encode()], dtype=object))
    context = Context(deadline=time.monotonic() + 30, needs=WHOLE)
    request = InferRequest(model=ModelRef(model), inputs=(tensor,), context=context)
    call = StreamInferRequest(model=request.model, request=request, context=context)
    try:
        items = [item async for item in await complete_service(connected, url)(call)]
    finally:
        await connected.close()
    if model == "numbers":
        return [as_numpy(item.outputs[0]).tolist() for item in items]
    return [b"".join(map(bytes, as_items(item.outputs[0]))) for item in items]


async def stream_over_http(gateway: Gateway, model: str) -> bytes:
    """Return the server-sent events of a stream over HTTP."""
    address = gateway.addresses["main.http"]
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://{address}/v2/models/{model}/generate_stream",
            json={"text": TEXT, "pause_ms": 0},
            headers={"x-request-id": "r"},
        ) as response,
    ):
        assert response.status == 200
        return await response.read()


async def test_streams_are_mirrored_and_compared() -> None:
    """Streams over gRPC and HTTP are compared as `streams` sets, and do not change."""
    models = {
        name: {"backend": "python", "options": {"callable": path}} for name, path in MODELS.items()
    }
    server_text = yaml.safe_dump({**yaml.safe_load(HTTP_LISTENER), "models": models})
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(server_text))
        text = stream_config(urls(server, "")["oip.grpc"])
        config = yaml.safe_load(text)
        del config["migrations"]
        gateway = await stack.enter_async_context(running(text))
        plain = await stack.enter_async_context(running(yaml.safe_dump(config)))
        for name, (_, _, _, outcome) in STREAMS.items():
            replies = await stream_over_grpc(gateway, name)
            assert len(replies) == 5
            assert replies == await stream_over_grpc(plain, name)
            calls = 1
            if name != "numbers":
                assert b"".join(replies) == TEXT.encode()
                events = await stream_over_http(gateway, name)
                assert events.count(b"data:") == 5
                assert events == await stream_over_http(plain, name)
                calls = 2
            found = await kit.evidence(gateway, kit.has_compared(calls), name)
            assert {key: count for key, count in found["outcomes"].items() if count} == {
                outcome: calls
            }, name
            assert kit.balances(found)
        await kit.until(gateway, kit.is_balanced)
