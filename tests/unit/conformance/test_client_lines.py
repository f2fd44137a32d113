"""Requests as lines for a shell, which bash runs here with a curl and a gateway that only print."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from gateway.conformance.client_lines import client_line
from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.tensor import Tensor, array_tensor, items_tensor
from gateway.settings.units import parse_url
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest

UPSTREAM = parse_url("oip+grpc://127.0.0.1:8001")
PRINTS_ARGUMENTS = """
curl() { printf '%s\\n' "$@"; [[ "$*" != *@-* ]] || cat; }
gateway() { for each; do case "$each" in *=@*) cat "${each#*=@}";; *) echo "$each";; esac; done; }
"""


def run(line: str) -> bytes:
    """Run a line with bash, and return what the commands print."""
    script = ["bash", "-c", PRINTS_ARGUMENTS + line]
    return subprocess.run(script, check=True, capture_output=True, timeout=60).stdout


def posted(*body: bytes) -> HttpRequest:
    """Return a request over HTTP with a body in parts."""
    headers = Headers([("Content-Type", "application/json"), ("Content-Length", "1")])
    return HttpRequest("POST", "/v1/models/it's/predict", "a=b&c", headers, body)


def infer(*inputs: Tensor) -> InferRequest:
    """Return a call with inputs."""
    return InferRequest(model=ModelRef("it's"), inputs=inputs)


@pytest.mark.parametrize("text", ['{"a": [1, 2]}', "it's $HOME `x` \\n", "Zoë"])
def test_texts_are_quoted(text: str) -> None:
    """The shell changes no character of a body, the path or the query."""
    line = client_line("tfs+http", posted(text[:3].encode(), text[3:].encode()), infer(), UPSTREAM)
    assert run(line).decode().splitlines() == [
        "-sS",
        "--fail-with-body",
        "-H",
        "Content-Type: application/json",
        "http://127.0.0.1:18000/v1/models/it's/predict?a=b&c",
        "--data-binary",
        text,
    ]


@pytest.mark.parametrize(
    "body", [bytes(range(256)) * 3, b"\n", b"@file", b"[" + b"1.0, " * 50_000 + b"1.0]"]
)
def test_other_bodies_come_from_a_pipe(body: bytes) -> None:
    """Bytes, line breaks and long texts arrive as they are, in a line of a reasonable length."""
    line = client_line("graphpipe+http", posted(body), infer(), UPSTREAM)
    assert len(line) < 3_000
    assert run(line).endswith(b"\n@-\n-o\n-\n" + body)


def test_other_carriers_use_the_client_of_the_gateway() -> None:
    """The values of each input stand in the line, and long ones in a file that the shell makes."""
    long = np.arange(3_000, dtype="<i4") % 7
    call = infer(items_tensor("T's", (1, 2), [b"a'b", b""]), array_tensor("X", long))
    line = client_line("tfs+grpc", GrpcRequest("/a/b"), call, UPSTREAM)
    *head, values = run(line).decode().splitlines()
    assert ["infer", "tfs+grpc://127.0.0.1:18001", "it's"] == head[:3]
    text = "T's=" + json.dumps([["a'b", ""]])
    assert ["--datatype", "T's=BYTES", "-i", text, "--datatype", "X=INT32", "-i"] == head[3:]
    assert long.tolist() == json.loads(values)


def test_no_line_is_endless() -> None:
    """There is none for what no line has room for."""
    body: Any = np.random.default_rng(0).bytes(60_000)
    assert not client_line("graphpipe+http", posted(body), infer(), UPSTREAM)
