"""Large binary tensors of a real client, forwarded to a real server while they arrive."""

import json
import random
import signal
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from gateway.schema.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from tests.integration.cli_kit import get
from tests.integration.shared_memory_kit import SEGMENTS
from tests.integration.workers_kit import eventually
from tests.interop.client import SCRIPTS, Client
from tests.interop.gateways import gateway_before, serving
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_large_tensors_round_trip(
    carrier: str, client: Client, triton_server: RunningServer
) -> None:
    """Up to 16 MB pass through the gateway and Triton exactly, over either carrier."""
    with gateway_before(triton_server, carrier) as gateway:
        seen = client.run(SCRIPTS / "large.py", gateway.addresses["main.http"])
    assert {"1000": True, "300000": True, "4000000": True} == seen


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_large_tensors_are_handed_over_in_shared_memory(
    carrier: str, client: Client, triton_server: RunningServer, tmp_path: Path
) -> None:
    """They are exact before Triton has the region and after, and clients do not see the region."""
    address = triton_server.address(carrier)
    upstream = {"url": f"oip+{carrier}://{address}", "hand_over": "auto"}
    listener = {"http": "127.0.0.1:0", "shared_memory": {"mode": "forward", "keys": ["*"]}}
    config = {
        "version": 1,
        "listeners": [listener],
        "admin": {"address": "127.0.0.1:0"},
        "upstreams": {"t": upstream},
        "routes": [{"name": "all", "match": {"model": "*"}, "targets": [{"upstream": "t"}]}],
    }
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps(config))
    with serving(str(path)) as gateway:
        for _ in range(2):
            seen = client.run(SCRIPTS / "large.py", gateway.addresses["main.http"])
            assert {"1000": True, "300000": True, "4000000": True} == seen
        (found,) = get(gateway.url("/status", "admin"))[1]["upstreams"]
        assert "on" == found["endpoints"][0]["hand_over"]
        assert (200, []) == get(gateway.url("/v2/systemsharedmemory/status"))
        listed = get(f"http://{triton_server.http_address}/v2/systemsharedmemory/status")[1]
        assert 1 == len([each for each in listed if each["name"].startswith("tensor-gateway-")])
        assert (200, None) == get(gateway.url("/v2/systemsharedmemory/unregister"), {})
        assert listed == get(f"http://{triton_server.http_address}/v2/systemsharedmemory/status")[1]
        gateway.stop()
    listed = get(f"http://{triton_server.http_address}/v2/systemsharedmemory/status")[1]
    assert [] == [each for each in listed if each["name"].startswith("tensor-gateway-")]


VALUES = (3, 5)
LARGE_BYTES = 160_000
REPLIES = 400
"""Right ones before a gateway is killed, and after."""

GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
FORMS = ("json", "binary", "binary of one", "grpc", "grpc of two")


def _inference(form: str, http: str, grpc_address: str, values: tuple[int, ...]) -> Any:
    """Return the whole response of model `large_outputs`, all but its date."""
    data = struct.pack(f"<{len(values)}i", *values)
    if form.startswith("grpc"):
        request = ModelInferRequest(model_name="large_outputs", id="7")
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[len(values), 1])
        request.raw_input_contents.append(data)
        for name in ("SMALL", "LARGE") if form == "grpc of two" else ():
            request.outputs.add(name=name)
        with grpc.insecure_channel(grpc_address) as channel:
            call = channel.unary_unary(
                GRPC_METHOD, ModelInferRequest.SerializeToString, ModelInferResponse.FromString
            )
            return call(request)
    tensor: dict[str, Any] = {"name": "INPUT0", "datatype": "INT32", "shape": [len(values), 1]}
    document: dict[str, Any] = {"id": "7", "inputs": [tensor]}
    fields = {"x-request-id": "7"}
    if form == "json":
        tensor["data"] = values
        body = json.dumps(document).encode()
    else:
        tensor["parameters"] = {"binary_data_size": len(data)}
        if form == "binary":
            document["parameters"] = {"binary_data_output": True}
        else:
            document["outputs"] = [{"name": "LARGE", "parameters": {"binary_data": True}}]
        head = json.dumps(document).encode()
        fields["Inference-Header-Content-Length"] = str(len(head))
        body = head + data
    connection = HTTPConnection(http, timeout=60)
    connection.request("POST", "/v2/models/large_outputs/infer", body, fields)
    response = connection.getresponse()
    headers = [each for each in response.getheaders() if each[0].lower() != "date"]
    body = response.read()
    connection.close()
    return response.status, headers, body


def _configured(folder: Path, upstream: dict[str, Any]) -> str:
    path = folder / f"{upstream['hand_over']}.yaml"
    free = "127.0.0.1:0"
    config = {
        "version": 1,
        "listeners": [{"http": free, "grpc": free}],
        "admin": {"address": free},
        "upstreams": {"t": upstream},
        "routes": [{"name": "all", "match": {"model": "*"}, "targets": [{"upstream": "t"}]}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def _is_in_a_region(reply: bytes) -> bool:
    """Return whether the output LARGE of a binary reply is in a region of a gateway."""
    for region in SEGMENTS.glob("tensor-gateway-*"):
        with suppress(FileNotFoundError):  # of a gateway that has ended meanwhile
            if reply[-LARGE_BYTES:] in region.read_bytes():
                return True
    return False


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_replies_in_shared_memory_are_those_in_bytes(
    carrier: str, triton_server: RunningServer, tmp_path: Path
) -> None:
    """Status, headers and bytes of each reply are the same, whatever carries it to the client."""
    address = triton_server.address(carrier)
    upstream = {"url": f"oip+{carrier}://{address}"}
    off = _configured(tmp_path, {**upstream, "hand_over": "off"})
    auto = _configured(tmp_path, {**upstream, "hand_over": "auto"})
    with serving(off) as as_bytes, serving(auto) as shared:
        at, there = (
            (each.addresses["main.http"], each.addresses["main.grpc"])
            for each in (shared, as_bytes)
        )
        for is_learnt in (False, True):
            if is_learnt:
                eventually(lambda: _is_in_a_region(_inference("binary of one", *at, (61,))[2]))
            for form in FORMS:
                for values in ((1,), (2, 3, 4)):
                    expected = _inference(form, *there, values)
                    assert expected == _inference(form, *at, values), (form, values)
        assert not _is_in_a_region(_inference("binary of one", *there, (67,))[2])


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_reply_that_exceeds_its_configuration_is_lost_once(
    carrier: str, triton_server: RunningServer, tmp_path: Path
) -> None:
    """The model has run, so the call is not repeated; all later replies come as bytes."""
    address = triton_server.address(carrier)
    auto = {"url": f"oip+{carrier}://{address}", "hand_over": "auto"}
    with serving(_configured(tmp_path, auto)) as gateway:
        at = gateway.addresses["main.http"], gateway.addresses["main.grpc"]
        eventually(lambda: _is_in_a_region(_inference("binary of one", *at, (101,))[2]))
        status, _, body = _inference("binary of one", *at, (-1,))
        assert HTTPStatus.SERVICE_UNAVAILABLE == status, body
        assert b"other outputs than its configuration has" in body
        status, _, body = _inference("binary of one", *at, (-1,))
        assert HTTPStatus.OK == status
        assert 2 * LARGE_BYTES < len(body)


def _send(port: str, seed: int, is_over: threading.Event, counts: Counter[str]) -> None:
    """Ask for outputs of random values; leave before one reply in ten, and read one in ten late."""
    draw = random.Random(seed)  # noqa: S311  # it must be repeatable
    row = np.arange(LARGE_BYTES // 4, dtype=np.float32) * np.float32(0.1)
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1]}
    output = {"name": "LARGE", "parameters": {"binary_data": True}}
    while not is_over.is_set():
        value = draw.randrange(1_000_000)
        body = json.dumps({"inputs": [{**tensor, "data": [value]}], "outputs": [output]})
        connection = HTTPConnection(port, timeout=60)
        try:
            connection.request("POST", "/v2/models/large_outputs/infer", body)
            if draw.random() < 0.1:
                counts["left"] += 1
                continue
            response = connection.getresponse()
            if draw.random() < 0.1:
                time.sleep(0.1)
            found = response.read()
        except (OSError, HTTPException):
            counts["broken"] += 1  # by the end of a gateway
            continue
        finally:
            connection.close()
        expected = (np.float32(value) + row).tobytes()
        counts["right" if found.endswith(expected) else f"{response.status}, wrong"] += 1


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_reply_in_shared_memory_is_that_of_its_call(
    carrier: str, triton_server: RunningServer, tmp_path: Path
) -> None:
    """Clients leave, others read late, and one of two gateways is killed: no reply is wrong."""
    address = triton_server.address(carrier)
    path = _configured(tmp_path, {"url": f"oip+{carrier}://{address}", "hand_over": "auto"})
    counts: Counter[str] = Counter()
    is_over = threading.Event()
    with serving(path) as one, serving(path) as two, ThreadPoolExecutor(8) as clients:
        ports = [each.addresses["main.http"] for each in (one, two)]
        running = [
            clients.submit(_send, ports[seed % 2], seed, is_over, counts) for seed in range(8)
        ]
        try:
            eventually(lambda: counts["right"] > REPLIES)
            two.stop(signal.SIGKILL)
            right = counts["right"]
            eventually(lambda: counts["right"] > right + REPLIES)
        finally:
            is_over.set()
        for each in running:
            each.result()
    assert {"right", "left", "broken"} == counts.keys()
