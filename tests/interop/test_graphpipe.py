"""Oracle's own GraphPipe client through the gateway, judged by its output.

The same checks before models in the gateway's own process, before the real Triton, and before a
second gateway that is asked as a GraphPipe server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.integration.cli_kit import Running
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import serving
from tests.interop.scripts.arrays import printed
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

Array = npt.NDArray[Any]

LEFT = np.arange(16, dtype=np.int32).reshape(1, 16)
SUM, DIFFERENCE = LEFT + 3, LEFT - 3

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
FLOATS = ("float16", "float32", "float64")


def _ends(dtype: str) -> Array:
    ends = np.iinfo(dtype)
    return np.array([ends.min, 0, 1, ends.max - 1, ends.max], dtype)


def _specials(dtype: str) -> Array:
    info = np.finfo(dtype)
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, 0.1]
    array = np.array(values, dtype)
    return array.reshape(1, -1) if dtype == "float32" else array


def _texts(*items: bytes | str, shape: tuple[int, ...] = (1, -1)) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


# What execute_multi gives is a list.
SINGLE: Mapping[str, Array] = {
    **{f"type {dtype}": _ends(dtype) for dtype in INTEGERS},
    **{f"type {dtype}": _specials(dtype) for dtype in FLOATS},
    "execute": np.ones((2, 3), np.float32),
    "fortran order": np.eye(2, 3, dtype="f4"),
    "no elements": np.zeros((0, 3), np.float32),
    "large": np.arange(150_528, dtype="f4").reshape(224, 672),
    "text": _texts("ä", "模型", ""),
    "bytes": _texts(b"\xff\x00\xfe", b"x"),
    "many strings": _texts(*map(str, range(5000))),
    "truths": np.array([0, 1, 1], np.uint8),
    "truths of int8": np.array([0, 1, 1], np.uint8),
    "halves": np.array([-0.0, 1.5, np.inf, -3.140625], np.float32),
}
PAIRS: Mapping[str, tuple[Array, ...]] = {
    "by name": (SUM, DIFFERENCE),
    "by place": (SUM, DIFFERENCE),
    "by empty names": (SUM,),
    "swapped names": (DIFFERENCE, SUM),
    "name at its place": (DIFFERENCE,),
    "one output": (DIFFERENCE,),
    "output twice": (SUM, SUM),
    "empty output name": (SUM, DIFFERENCE),
    "batch": (SUM.repeat(4, 0), DIFFERENCE.repeat(4, 0)),
}
CONFIGS: Mapping[str, tuple[Array, ...]] = {
    "config text": (_texts('{"graphpipe_config": "as it is"}', shape=(1,)),),
    "config object": (
        _texts(
            '{"beams": 4, "graphpipe_config": "{\\"request_id\\": \\"r7\\", \\"parameters\\": '
            '{\\"beams\\": 4, \\"mode\\": \\"fast\\"}}", "mode": "fast"}',
            shape=(1,),
        ),
    ),
    "no config": (_texts("{}", shape=(1,)),),
}
TEXTS: Mapping[str, tuple[Array, ...]] = {
    "numbers as text": (
        _texts(*map(str, SUM.reshape(-1))),
        _texts(*map(str, DIFFERENCE.reshape(-1))),
    ),
}
METADATA = {
    "name": "add_sub",
    "server": "tensor-gateway",
    "described": True,
    "inputs": ["INPUT0", "INPUT1"],
    "outputs": ["OUTPUT0", "OUTPUT1"],
    "input_types": ["int32", "int32"],
    "output_types": ["int32", "int32"],
    "input_shapes": [[None, 16], [None, 16]],
    "output_shapes": [[None, 16], [None, 16]],
}
SHOWN = {"status": 200, "type": "application/json"}
TOLD: Mapping[str, Any] = {
    "metadata": METADATA,
    "metadata of truths": ["uint8"],
    "metadata of halves": ["float32"],
    "metadata of strings": [["INPUT0"], "12"],
    "shown": {**SHOWN, "inputs": [["INPUT0", 6], ["INPUT1", 6]]},
    "head": {**SHOWN, "inputs": []},
    "refused method": {"status": 405, "type": "text/plain", "inputs": []},
}
EXPECTED: Mapping[str, Any] = {
    **{name: printed(array) for name, array in SINGLE.items()},
    **{
        name: [printed(array) for array in arrays]
        for name, arrays in {**PAIRS, **CONFIGS, **TEXTS}.items()
    },
    **TOLD,
}
# Parts of the error's text: the rest is the server's own.
ERRORS: Mapping[str, tuple[str, ...]] = {
    "unknown model": ("nobody",),
    "metadata of an unknown model": ("404 Client Error: Not Found",),
    "unknown input": ("INPUT9", "add_sub"),
    "unknown output": ("OUTPUT9", "add_sub"),
    "too many inputs": ("has 2 inputs, the message has 3",),
    "too few inputs": ("INPUT1", "add_sub"),
    "input twice": ("input 'INPUT0' occurs twice, as tensors 0 and 1",),
    "names missing": ("2 input tensors have 1 input names",),
    "another type": ("FP64", "INT32"),
    "another shape": ("INPUT0", "add_sub"),
    "inexact halves": ("element 0 is 0.10000000149011612, which BF16 cannot represent exactly",),
}

MODELS = {
    "add_sub": "simple",
    "add_sub_string": "simple_string",
    "params_echo": "params_echo",
    **{
        name: name
        for name in (
            *(f"identity_{dtype}" for dtype in INTEGERS),
            *("identity_fp16", "identity_fp32", "identity_fp64"),
            *("identity_bool", "identity_bf16", "identity_bytes"),
        )
    },
}
LISTENING = """
version: 1
listeners: [{listeners}]
admin: {{address: null, metrics: null}}
lifecycle: {{pre_stop: 0s}}
"""
HTTP = '{http: "127.0.0.1:0"}'


@pytest.fixture(scope="session")
def graphpipe_client() -> Client:
    """Give the environment that holds the package graphpipe."""
    return Client(environment("graphpipe"))


@contextmanager
def in_process(folder: Path, *listeners: str) -> Iterator[Running]:
    """Run a gateway with every model of the checks in its own process."""
    models = "".join(
        f'  {name}: {{backend: python, options: {{callable: "gateway.backends.examples:{of}"}}}}\n'
        for name, of in MODELS.items()
    )
    file = folder / "models.yaml"
    listening = LISTENING.format(listeners=", ".join(listeners or [HTTP]))
    file.write_text(f"{listening}models:\n{models}")
    with serving(str(file)) as gateway:
        yield gateway


def seen_by(client: Client, gateway: Running, *checks: str) -> Mapping[str, Any]:
    """Return the results of the client in *checks*, or in all."""
    script = SCRIPTS / "graphpipe_client.py"
    found: Mapping[str, Any] = client.run(script, gateway.url("/graphpipe"), *checks)
    return found


def check(seen: Mapping[str, Any]) -> None:
    """Compare the results with the expected ones."""
    for name, parts in ERRORS.items():
        if name in seen:
            assert "error" in seen[name], name
            assert all(part in seen[name]["error"] for part in parts), (name, seen[name])
    answers = {name: value for name, value in seen.items() if name not in ERRORS}
    assert {name: EXPECTED[name] for name in answers} == answers


def check_all(seen: Mapping[str, Any]) -> None:
    """Compare the results, and check that none is missing."""
    assert EXPECTED.keys() | ERRORS.keys() == seen.keys()
    check(seen)


def test_models_in_process(graphpipe_client: Client, tmp_path: Path) -> None:
    """In-process models reply to every check of the real client."""
    with in_process(tmp_path) as gateway:
        check_all(seen_by(graphpipe_client, gateway))


def test_triton_over_grpc(triton_server: RunningServer, graphpipe_client: Client) -> None:
    """The real Triton, which has no GraphPipe, replies to every check of the real client."""
    upstream = f"oip+grpc://{triton_server.grpc_address}"
    with sidecar(upstream) as gateway:
        check_all(seen_by(graphpipe_client, gateway))


def test_second_gateway_over_http(graphpipe_client: Client, tmp_path: Path) -> None:
    """Through two gateways, with GraphPipe between them, the real client sees the same."""
    with (
        in_process(tmp_path) as behind,
        sidecar(f"graphpipe+http://{behind.addresses['main.http']}") as gateway,
    ):
        check_all(seen_by(graphpipe_client, gateway))


@pytest.mark.parametrize("carrier", ["tcp", "unix"])
def test_second_gateway_over_sockets(
    graphpipe_client: Client, tmp_path: Path, carrier: str
) -> None:
    """The two gateways are connected by one byte stream per model."""
    folder = tmp_path / "sockets"
    folder.mkdir()
    behind = [_socket(model, carrier, folder) for model in MODELS]
    with in_process(tmp_path, *behind) as models:
        upstreams = {name: _url(models, name, carrier) for name in MODELS}
        with one_upstream_a_model(tmp_path, upstreams) as gateway:
            check_all(seen_by(graphpipe_client, gateway))


def _socket(model: str, carrier: str, folder: Path) -> str:
    address = "127.0.0.1:0" if carrier == "tcp" else f"unix:{folder}/{model}"
    stream = f'{{protocol: graphpipe, address: "{address}"}}'
    return f"{{name: {model}, default_model: {model}, streams: [{stream}]}}"


def _url(models: Running, name: str, carrier: str) -> str:
    address = models.addresses[f"{name}.graphpipe.{carrier}"]
    return f"graphpipe+{carrier}://{address.removeprefix('unix:')}"


@contextmanager
def one_upstream_a_model(folder: Path, upstreams: Mapping[str, str]) -> Iterator[Running]:
    """Run a gateway that calls each model at a URL of its own."""
    lines = [LISTENING.format(listeners=HTTP), "upstreams:"]
    lines += [f'  {name}: {{url: "{url}"}}' for name, url in upstreams.items()]
    lines += ["routes:"]
    lines += [
        f"  - {{name: {name}, match: {{model: {name}}}, targets: [{{upstream: {name}}}]}}"
        for name in upstreams
    ]
    file = folder / "front.yaml"
    file.write_text("\n".join(lines) + "\n")
    with serving(str(file)) as gateway:
        yield gateway


@contextmanager
def sidecar(*upstreams: str) -> Iterator[Running]:
    """Run the gateway in front of *upstreams*, as its users do."""
    flags = [word for url in upstreams for word in ("--upstream", url)]
    with serving(*flags, "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off") as gateway:
        yield gateway
