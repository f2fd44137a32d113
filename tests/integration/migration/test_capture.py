"""A gateway that records: every protocol, rejected requests, streams, and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from io import BytesIO
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.cli.demo.config import demo_config
from gateway.ir.tensors.tensor import as_numpy, as_raw
from gateway.migration.captures.capture import Capture
from tests.integration.asking_kit import ask, running, urls
from tests.integration.cut_kit import MIB, Far, request, response_of
from tests.integration.http_kit import Raw, eventually

pytestmark = pytest.mark.timeout(90)

PIXELS = np.arange(64, dtype=np.float32).reshape(1, 64) % 17


def configuration(directory: Path, **capture: object) -> str:
    config = demo_config(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="127.0.0.1:0")
    config["lifecycle"] = {"pre_stop": "0s", "drain": "1s"}
    return yaml.safe_dump({**config, "capture": {"directory": str(directory), **capture}})


def gateway_command(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(["capture"]), ["capture", *arguments])


async def test_calls_of_every_protocol_are_recorded(tmp_path: Path) -> None:
    """Each inference is recorded once with route, target and outputs; other calls are not."""
    text = configuration(tmp_path, payload="full", min_free=0)
    async with running(text) as gateway:
        found = urls(gateway, "digits")
        expected = {name: await ask(url, "digits", {"X": PIXELS}) for name, url in found.items()}
    calls = list(Capture(tmp_path).calls())
    assert sorted(call.call.protocol for call in calls) == sorted(expected)
    for call in calls:
        assert call.missing == ""
        assert (call.call.route, call.call.target) == ("digits", "local/digits")
        outputs = call.outputs()
        assert outputs is not None
        probabilities = as_numpy(outputs[0][-1]).reshape(-1)
        expected_values = expected[call.call.protocol]["probabilities"].reshape(-1)
        assert np.array_equal(expected_values, probabilities)
    assert Capture(tmp_path).verify() == (len(expected), [])


async def test_rejected_requests_are_recorded_with_messages(tmp_path: Path) -> None:
    """With `wire` an unreadable request is recorded without its query and headers."""
    text = configuration(tmp_path, payload="full", wire=True, min_free=0)
    async with running(text) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}/v2/models/digits/infer?token=seeded"
        headers = {"Authorization": "seeded"}
        async with session.post(url, data=b'{"inputs": 1}', headers=headers) as response:
            assert response.status == 400
            body = await response.read()
    (call,) = Capture(tmp_path).calls()
    request, reply = call.wire
    assert (call.call.code, request.body, reply.body) == (
        "invalid_argument",
        b'{"inputs": 1}',
        body,
    )
    assert json.loads(request.head)["path"] == "/v2/models/digits/infer"
    assert json.loads(reply.head)["status"] == 400
    assert "seeded" not in request.head + reply.head + call.call.details


UPSTREAM = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams: {{far: {{url: "oip+{url}", options: {{dialect: unknown}}}}}}
routes: [{{name: m, match: {{model: m}}, targets: [{{upstream: far}}]}}]
capture: {{directory: "{directory}", payload: full, wire: true, min_free: 0}}
"""


async def test_streaming_body_is_recorded_whole(tmp_path: Path) -> None:
    """The upstream gets the first bytes before the client sends the last; the record has all."""
    data = os.urandom(3 * MIB)
    head, body = request(("a", "UINT8", data))
    async with Far() as far:
        text = UPSTREAM.format(url=far.url, directory=tmp_path)
        async with running(text) as gateway:
            host, _, port = gateway.addresses["main.http"].rpartition(":")
            raw = Raw(*await asyncio.open_connection(host, int(port)))
            await raw.send(head + body[:1000])
            await eventually(lambda: any(seen.body.endswith(body[:1000]) for seen in far.seen))
            await raw.send(body[1000:])
            assert (await response_of(raw)).status == 200
            await raw.close()
    (call,) = Capture(tmp_path).calls()
    assert [bytes(as_raw(each)) for each in call.request().inputs] == [data]
    (message,) = [each for each in call.wire if each.side == "request"]
    assert message.body == head.partition(b"\r\n\r\n")[2] + body


async def test_metrics_count_recorded_calls(tmp_path: Path) -> None:
    """The metrics page counts the recorded calls."""
    text = configuration(tmp_path, min_free=0)
    async with running(text) as gateway, aiohttp.ClientSession() as session:
        await ask(urls(gateway, "digits")["oip.http"], "digits", {"X": PIXELS})
        found = ""
        while "gateway_capture_calls_total 1.0" not in found:
            async with session.get(f"http://{gateway.addresses['admin']}/metrics") as response:
                found = await response.text()


async def test_commands_show_verify_export_and_redact(tmp_path: Path) -> None:
    """The commands read what a gateway wrote."""
    directory = str(tmp_path / "capture")
    async with running(configuration(Path(directory), payload="full", min_free=0)) as gateway:
        url = urls(gateway, "digits")["oip.grpc"]
        expected = await ask(url, "digits", {"X": PIXELS})
    listed = json.loads(gateway_command("ls", directory, "--output", "json").stdout)
    assert [each["models"] for each in listed] == [{"digits": 1}]
    (call,) = Capture(Path(directory)).calls()
    document = json.loads(gateway_command("show", directory, "--id", call.id, "-o", "json").stdout)
    assert document["replies"][0]["outputs"][0]["data"] == expected["label"].tolist()
    by_request = gateway_command("show", directory, "--id", call.call.request_id)
    assert "probabilities" in by_request.stdout
    assert gateway_command("show", directory, "--id", "ffff-1").exit_code == 1
    assert gateway_command("verify", directory).stdout == "1 whole calls, 0 problems\n"
    assert gateway_command("verify", str(tmp_path / "no")).exit_code == 2
    for form, name in (("jsonl", "a.jsonl"), ("npz", "a.npz"), ("perf-analyzer", "a.json")):
        result = gateway_command("export", directory, "--to", form, "-o", str(tmp_path / name))
        assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "a.jsonl").read_text())["request_id"] == call.call.request_id
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        array = np.lib.format.read_array(BytesIO(archive.read(f"{call.id}/input/X.npy")))
    assert np.array_equal(array, PIXELS)
    data = json.loads((tmp_path / "a.json").read_text())["data"]
    assert data[0]["X"]["shape"] == [1, 64]
    out = str(tmp_path / "less")
    assert gateway_command("redact", directory, "-o", out, "--tensor", "X=hash").exit_code == 0
    (less,) = Capture(Path(out)).calls()
    assert less.missing == "payload not recorded"
    assert gateway_command("redact", directory, "-o", out).exit_code == 2
    assert gateway_command("export", out, "--to", "npz", "-o", str(tmp_path / "b")).exit_code == 1
