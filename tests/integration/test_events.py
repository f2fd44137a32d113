"""Payload events: what sinks get of calls in every protocol, and the books."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import trustme
import yaml

from gateway.app import Gateway
from gateway.ir.errors import GatewayError
from gateway.schema import open_inference_pb2
from tests.integration.asking_kit import ask, running, server_config, urls
from tests.integration.event_kit import SinkServer, books_at_rest, sink_server

SCAN = np.arange(64, dtype=np.float32)[np.newaxis]


def config(**sinks: dict[str, Any]) -> str:
    """Return a configuration that serves the model of the demo and has sinks of events."""
    found = yaml.safe_load(server_config())
    found["events"] = sinks
    return yaml.safe_dump(found)


def audit(sink: SinkServer, **keys: Any) -> dict[str, Any]:
    return {"url": sink.url, "payload": "full", **keys}


async def test_each_call_is_a_pair_whatever_the_client_spoke() -> None:
    """A sink gets the request and the reply of calls in all protocols as JSON of V2."""
    async with sink_server() as sink, running(config(audit=audit(sink))) as gateway:
        addresses = urls(gateway, "digits")
        for url in addresses.values():
            await ask(url, "digits", {"X": SCAN})
        await sink.wait_for(2 * len(addresses))
        pairs = sink.pairs()
        assert len(addresses) == len(pairs)
        for pair in pairs.values():
            (given,) = pair["request"]["inputs"]
            assert ("X", "FP32", [1, 64]) == (given["name"], given["datatype"], given["shape"])
            assert SCAN.ravel().tolist() == given["data"]
            assert ["label", "probabilities"] == [
                each["name"] for each in pair["response"]["outputs"]
            ]
            assert "digits" == pair["response"]["model_name"]
        books = await books_at_rest(gateway, lambda books: not books["audit"]["in_flight"])
        assert (len(sink.events), len(sink.events)) == (
            books["audit"]["sampled"],
            books["audit"]["delivered"],
        )


async def test_a_stream_is_a_pair_over_grpc_and_http() -> None:
    """The replies of a decoupled model are one event, whichever stream the client reads."""
    text = yaml.safe_load(server_config())
    letters = {"callable": "tests.integration.streaming_models:letters"}
    text["models"] = {"letters": {"backend": "python", "options": letters}}
    async with sink_server() as sink:
        text["events"] = {"audit": audit(sink, headers=["x-tenant"])}
        async with running(yaml.safe_dump(text)) as gateway:
            await stream_over_http(gateway)
            await stream_over_grpc(gateway)
            await sink.wait_for(4)
    for pair in sink.pairs().values():
        (given,), (output,) = pair["request"]["inputs"], pair["response"]["outputs"]
        assert ("text", "BYTES") == (given["name"], given["datatype"])
        assert ("token", [len(given["data"][0])], list(given["data"][0])) == (
            output["name"],
            output["shape"],
            output["data"],
        )
    kept = {head["ce-id"]: json.loads(head["ce-metadata"]) for head, _ in sink.events}
    assert {"x-tenant": ["a"]} == kept["mine"]


async def stream_over_http(gateway: Gateway) -> None:
    """Read the server-sent events of a stream."""
    url = f"http://{gateway.addresses['main.http']}/v2/models/letters/generate_stream"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"text": "words"}) as response,
    ):
        assert 200 == response.status
        assert await response.read()


async def stream_over_grpc(gateway: Gateway) -> None:
    """Read the replies to one message of a bidirectional stream."""
    message = open_inference_pb2.ModelInferRequest(model_name="letters", id="i")
    given = message.inputs.add(name="text", datatype="BYTES", shape=[1])
    given.contents.bytes_contents.append(b"abc")
    metadata = (("ce-id", "mine"), ("x-tenant", "a"))
    async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = stream(iter([message.SerializeToString()]), timeout=60, metadata=metadata)
        assert [each async for each in call]


async def test_a_failed_call_has_a_request_only() -> None:
    """Nothing is sent of a reply that the client did not get."""
    async with sink_server() as sink, running(config(audit=audit(sink))) as gateway:
        url = urls(gateway, "digits")["oip.http"]
        with pytest.raises(GatewayError):
            await ask(url, "digits", {"unknown": SCAN})
        await sink.wait_for(1)
        books = await books_at_rest(gateway, lambda books: not books["audit"]["in_flight"])
        assert {"sampled": 1, "delivered": 1} == +books["audit"]
        assert [{"request"}] == [set(pair) for pair in sink.pairs().values()]


@pytest.mark.migration
async def test_a_capture_and_sinks_get_the_same_calls(tmp_path: Path) -> None:
    """A call that is recorded is also sent, and a sink gets no more than it may."""
    text = yaml.safe_load(server_config())
    text["capture"] = {"directory": f"{tmp_path}/capture", "payload": "full", "min_free": 0}
    async with sink_server() as full, sink_server() as none:
        text["events"] = {"full": audit(full), "none": audit(none, payload="none")}
        async with running(yaml.safe_dump(text)) as gateway:
            for url in urls(gateway, "digits").values():
                await ask(url, "digits", {"X": SCAN})
            count = len(urls(gateway, "digits"))
            await full.wait_for(2 * count)
            await none.wait_for(2 * count)
    from gateway.migration.captures.capture import Capture  # noqa: PLC0415  # of the kit

    assert (count, []) == Capture(tmp_path / "capture").verify()
    for pair in none.pairs().values():
        tensors = [*pair["request"]["inputs"], *pair["response"]["outputs"]]
        assert not any({"data", "b64"} & each.keys() for each in tensors)
    assert all("data" in pair["request"]["inputs"][0] for pair in full.pairs().values())


async def test_a_sink_with_tls_gets_events_with_its_headers(tmp_path: Path) -> None:
    """The certificate is verified by `ca`, and a renewed file of a header is used soon."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    token = tmp_path / "token"
    token.write_text("first\n")
    async with sink_server(context) as sink:
        headers = {"authorization": "Bearer ${file:token}"}
        sinks = {"audit": audit(sink, request_headers=headers, tls={"ca": "ca.pem"})}
        async with running(config(**sinks), tmp_path) as gateway:
            url = urls(gateway, "digits")["oip.http"]
            await ask(url, "digits", {"X": SCAN})
            await sink.wait_for(2)
            token.write_text("second\n")
            async with asyncio.timeout(45):
                while sink.events[-1][0]["authorization"] != "Bearer second":
                    before = len(sink.events)
                    await ask(url, "digits", {"X": SCAN})
                    await sink.wait_for(before + 2)
    assert "Bearer first" == sink.events[0][0]["authorization"]


async def test_a_stop_writes_the_objects_that_are_not_full(tmp_path: Path) -> None:
    """Events that wait for a full object are written before the gateway ends."""
    folder = tmp_path / "objects"
    archive = {"url": f"file://{folder}", "payload": "full", "format": "jsonl"}
    async with running(config(archive=archive)) as gateway:
        await ask(urls(gateway, "digits")["oip.http"], "digits", {"X": SCAN})
    rows = await asyncio.to_thread(rows_of, folder)
    assert ["request", "response"] == [row["reqType"].rpartition(".")[2] for row in rows]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all objects in a folder."""
    lines = [line for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]
