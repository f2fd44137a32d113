"""`gateway convert`: recorded calls and single messages in other protocols, in both directions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.cli.demo.config import demo_config
from tests.integration.asking_kit import ask, running, urls

pytestmark = pytest.mark.timeout(90)

PIXELS = np.arange(64, dtype=np.float32).reshape(1, 64) % 17
FORMS = ["oip.http", "oip.grpc", "trtis.http", "trtis.grpc", "graphpipe.http", "graphpipe.tcp"]
FORMS += ["graphpipe.unix", "grps.http", "grps.grpc", "grps.brpc", "tfs.grpc"]
SIGNATURE = """
inputs: [{name: X, datatype: FP32, shape: [-1, 64]}]
outputs:
  - {name: label, datatype: INT64, shape: [-1]}
  - {name: probabilities, datatype: FP32, shape: [-1, 10]}
max_batch_size: 8
"""


def convert(*arguments: object) -> Result:
    return CliRunner().invoke(command_line(["convert"]), ["convert", *map(str, arguments)])


@pytest.fixture(scope="module")
def signature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signature") / "digits.yaml"
    path.write_text(SIGNATURE)
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture of one call by a TensorRT v1 client, and one for an unknown model."""
    directory = tmp_path_factory.mktemp("capture")
    config = demo_config(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="off")
    config["capture"] = {"directory": str(directory), "payload": "full", "min_free": 0}

    async def record() -> None:
        async with running(yaml.safe_dump(config)) as gateway:
            await ask(urls(gateway, "digits")["trtis.http"], "digits", {"X": PIXELS})
            address = f"http://{gateway.addresses['main.http']}/v2/models/nothing/infer"
            async with aiohttp.ClientSession() as session, session.post(address, json=X) as reply:
                assert reply.status == 404

    asyncio.run(record())
    return directory


X = {
    "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 64], "data": PIXELS.ravel().tolist()}]
}


def files_of(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of the index of the first call by "request" and "reply"."""
    lines = [json.loads(line) for line in (directory / "calls.jsonl").read_text().splitlines()]
    first = [line for line in lines if line["id"] == lines[0]["id"]]
    return {line["file"].split(".")[1]: line for line in first}


def back(directory: Path, form: str, side: str, signature: Path, out: Path) -> dict[str, Any]:
    """Convert the message on one *side* of a form to arrays."""
    line = files_of(directory)[side]
    first, *headers = line["head"] or [""]
    path = ["--path", first.split(" ")[-1]] if side == "request" and first else []
    options = [part for header in headers for part in ("--header", header)]
    reply = ["--reply"] if side == "reply" else []
    result = convert(
        directory / line["file"], "--from", form, "--to", "npz", "-o", out, *path, *options, *reply,
        "--signature", signature, "--model", "digits",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    with np.load(out) as found:  # noqa: TID251  # allows no pickles
        return dict(found)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_written_and_read_back(
    form: str, recorded: Path, signature: Path, tmp_path: Path
) -> None:
    """A recorded call keeps its tensors when it is written in any form and read again."""
    out = tmp_path / "out"
    result = convert(recorded, "--to", form, "-o", out, "--signature", signature)
    assert result.output == f"2 calls written to {out}\n"
    inputs = back(out, form, "request", signature, tmp_path / "x.npz")
    assert list(inputs) == ["X"]
    np.testing.assert_array_equal(PIXELS, inputs["X"])
    outputs = back(out, form, "reply", signature, tmp_path / "y.npz")
    assert list(outputs) == ["label", "probabilities"]
    assert (outputs["label"].dtype, outputs["probabilities"].shape) == (np.int64, (1, 10))
    assert int(outputs["label"].ravel()[0]) == int(outputs["probabilities"].argmax())


def test_rows_of_tensorflow_clients_are_converted(signature: Path, tmp_path: Path) -> None:
    """A call recorded in rows is written in another form, and back in its own."""
    directory, typed, rows = tmp_path / "capture", tmp_path / "typed", tmp_path / "rows"
    config = demo_config(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="off")
    config["capture"] = {"directory": str(directory), "payload": "full", "min_free": 0}
    body = {"instances": PIXELS.tolist()}

    async def record() -> None:
        async with running(yaml.safe_dump(config)) as gateway, aiohttp.ClientSession() as session:
            address = f"http://{gateway.addresses['main.http']}/v1/models/digits:predict"
            async with session.post(address, json=body) as reply:
                assert reply.status == 200, await reply.text()

    asyncio.run(record())
    for form, out in (("oip.grpc", typed), ("tfs.http", rows)):
        result = convert(directory, "--to", form, "-o", out, "--signature", signature)
        assert result.output == f"1 calls written to {out}\n"
        inputs = back(out, form, "request", signature, tmp_path / f"{form}.x.npz")
        np.testing.assert_array_equal(PIXELS, inputs["X"])
        outputs = back(out, form, "reply", signature, tmp_path / f"{form}.y.npz")
        assert (outputs["label"].shape, outputs["probabilities"].dtype) == ((1,), np.float32)


@pytest.mark.parametrize("form", ["oip.http", "trtis.http", "graphpipe.http"])
async def test_converted_request_is_accepted_by_a_server(
    form: str, recorded: Path, signature: Path, tmp_path: Path
) -> None:
    """The written path, headers and body make a request that a real listener accepts."""
    await asyncio.to_thread(
        convert, recorded, "--to", form, "-o", tmp_path / "out", "--signature", signature
    )
    line = files_of(tmp_path / "out")["request"]
    method, path = line["head"][0].split(" ")
    headers = dict(header.split(": ", 1) for header in line["head"][1:])
    config = demo_config(http="127.0.0.1:0", grpc="off", admin="off")
    async with running(yaml.safe_dump(config)) as gateway, aiohttp.ClientSession() as session:
        url = f"http://{gateway.addresses['main.http']}{path}"
        body = (tmp_path / "out" / line["file"]).read_bytes()
        async with session.request(method, url, data=body, headers=headers) as response:
            assert response.status == 200
            assert len(await response.read()) > 40


def test_tensors_are_written_as_text(recorded: Path, signature: Path, tmp_path: Path) -> None:
    """`--to text` has a line for each tensor."""
    result = convert(recorded, "--to", "text", "-o", tmp_path / "out", "--signature", signature)
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / files_of(tmp_path / "out")["request"]["file"]).read_text()
    assert text.startswith("X FP32[1, 64] [[0.0, 1.0, 2.0, ")


def test_binary_tensors_are_optional(recorded: Path, signature: Path, tmp_path: Path) -> None:
    """`--binary` writes the form of tritonclient: JSON, then elements."""
    convert(
        recorded, "--to", "oip.http", "--binary", "-o", tmp_path / "out", "--signature", signature
    )
    line = files_of(tmp_path / "out")["request"]
    body = (tmp_path / "out" / line["file"]).read_bytes()
    assert "Inference-Header-Content-Length" in " ".join(line["head"])
    assert body.endswith(PIXELS.tobytes())


def test_missing_signature_is_named(recorded: Path, tmp_path: Path) -> None:
    """TensorRT v1 sends no datatypes, so a file of Open Inference needs the signature."""
    result = convert(recorded, "--to", "oip.http", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "1 calls left out: the signature of the model is unknown" in result.output
    assert "--signature FILE" in result.output


def test_configuration_serves_as_signature_file(recorded: Path, tmp_path: Path) -> None:
    """A signature file may be a configuration, with a signature for each model."""
    config = tmp_path / "gateway.yaml"
    signature = yaml.safe_load(SIGNATURE)
    config.write_text(yaml.safe_dump({"models": {"digits": {"signature": signature}}}))
    out = tmp_path / "out"
    assert convert(recorded, "--to", "oip.grpc", "-o", out, "--signature", config).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--to", "soap.http"), "--to is 'soap.http'; expected one of graphpipe.http, "),
        (("--to", "oip.http", "--from", "oip.tcp"), "--from is 'oip.tcp'; expected one of"),
        (("--to", "npz", "--path", "/"), "a capture has its own protocol, paths and headers"),
        (("--to", "npz", "--from", "oip.http", "-H", "x"), "--header is 'x'; expected 'NAME: "),
    ],
)
def test_wrong_usage_is_status_2(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    """Wrong flags exit with status 2 and name the expected value."""
    file = tmp_path / "file.capture"
    file.write_bytes(b"{}")
    result = convert(file, *arguments, "-o", tmp_path / "out")
    assert (result.exit_code, text in result.output) == (2, True), result.output


def test_message_without_from_is_rejected(tmp_path: Path) -> None:
    """Without --from the file must be a capture."""
    file = tmp_path / "request.bin"
    file.write_bytes(b"{}")
    result = convert(file, "--to", "npz", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "expected a capture, or --from FORM for a message" in result.output


def test_undecodable_message_is_named(tmp_path: Path) -> None:
    """A message that the codec cannot decode is an error that names its file."""
    file = tmp_path / "request.json"
    file.write_text("{")
    for form, path in (("oip.http", "/v2/models/m/infer"), ("grps.brpc", ""), ("oip.http", "/")):
        result = convert(file, "--from", form, "--path", path, "--to", "npz")
        assert (result.exit_code, str(file) in result.output) == (1, True), result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("path", "body", "own"),
    [
        (
            "/invocations",
            {"instances": PIXELS.tolist()},
            ("mlflow.http", "torchserve.http", "torchserve.grpc"),
        ),
        (
            "/api/v1.0/predictions",
            {
                "data": {
                    "tensor": {
                        "shape": list(PIXELS.shape),
                        "values": PIXELS.reshape(-1).astype(float).tolist(),
                    }
                }
            },
            ("seldon.http",),
        ),
    ],
    ids=["mlflow", "seldon"],
)
def test_numbers_without_datatypes_are_converted(
    path: str, body: Any, own: tuple[str, ...], signature: Path, tmp_path: Path
) -> None:
    """A recorded call has its datatypes in a request of another protocol."""
    directory = tmp_path / "capture"
    config = demo_config(http="127.0.0.1:0", grpc="off", admin="off")
    config["capture"] = {"directory": str(directory), "payload": "full", "min_free": 0}

    async def record() -> None:
        async with running(yaml.safe_dump(config)) as gateway:
            address = f"http://{gateway.addresses['main.http']}{path}"
            async with (
                aiohttp.ClientSession() as session,
                session.post(address, json=body) as reply,
            ):
                assert reply.status == 200

    asyncio.run(record())
    for form in ("oip.http", *own):
        out = tmp_path / form
        result = convert(directory, "--to", form, "-o", out, "--signature", signature)
        assert result.output == f"1 calls written to {out}\n"
        inputs = back(out, form, "request", signature, tmp_path / f"{form}.x.npz")
        assert inputs["X"].dtype == np.float32
        np.testing.assert_array_equal(PIXELS, inputs["X"])
        if form == "seldon.http":  # its replies have one of the two outputs
            continue
        outputs = back(out, form, "reply", signature, tmp_path / f"{form}.y.npz")
        assert (outputs["probabilities"].shape, outputs["probabilities"].dtype) == (
            (1, 10),
            np.float32,
        )
