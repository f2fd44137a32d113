"""Hostile TensorRT v1 over HTTP: invalid headers, and bodies that do not match them."""

from __future__ import annotations

import random

import pytest

from tests.hostile.judge import Patient
from tests.hostile.wire import Answer, Raw, post

pytestmark = pytest.mark.hostile

PATH = "/api/infer/simple"
GOOD = 'batch_size: 1 input { name: "INPUT0" dims: 16 } input { name: "INPUT1" dims: 16 } '
OUTPUTS = 'output { name: "OUTPUT0" } output { name: "OUTPUT1" }'
BODY = bytes(128)

TEXTS = {
    "empty": "",
    "no-inputs": "batch_size: 1",
    "unclosed": "input {",
    "closed-twice": GOOD + "}",
    "deep": "input { " * 300,
    "deep-and-closed": "input { " * 300 + "} " * 300,
    "deep-angles": "input < " * 300,
    "unknown-field": GOOD + "nonsense: 1",
    "unknown-message": GOOD + 'nonsense { a { b { c: "d" } } }',
    "huge-batch": GOOD.replace("batch_size: 1", "batch_size: 4294967295"),
    "batch-over-32-bits": GOOD.replace("batch_size: 1", "batch_size: 4294967296"),
    "negative-batch": GOOD.replace("batch_size: 1", "batch_size: -1"),
    "batch-is-text": GOOD.replace("batch_size: 1", 'batch_size: "1"'),
    "batch-is-float": GOOD.replace("batch_size: 1", "batch_size: 1.5"),
    "batch-is-nan": GOOD.replace("batch_size: 1", "batch_size: nan"),
    "long-number": GOOD.replace("batch_size: 1", "batch_size: " + "9" * 5000),
    "huge-dim": GOOD.replace("dims: 16", "dims: 9223372036854775807"),
    "dim-over-64-bits": GOOD.replace("dims: 16", "dims: 9223372036854775808"),
    "negative-dim": GOOD.replace("dims: 16", "dims: -16"),
    "product-over-64-bits": GOOD.replace("dims: 16", "dims: 4294967296 dims: 4294967296"),
    "zero-times-huge": GOOD.replace("dims: 16", "dims: 0 dims: 1099511627776"),
    "rank-33": GOOD.replace("dims: 16", "dims: 1 " * 33),
    "byte-size-lies": GOOD.replace("dims: 16", "dims: 16 batch_byte_size: 18446744073709551615"),
    "byte-size-short": GOOD.replace("dims: 16", "dims: 16 batch_byte_size: 1"),
    "one-input": 'batch_size: 1 input { name: "INPUT0" dims: 16 }',
    "input-twice": 'batch_size: 1 input { name: "INPUT0" } input { name: "INPUT0" }',
    "unknown-input": GOOD.replace("INPUT1", "INPUT2"),
    "nameless-input": GOOD.replace('name: "INPUT1" ', ""),
    "unknown-output": GOOD + 'output { name: "NOPE" }',
    "output-twice": GOOD + 'output { name: "OUTPUT0" } output { name: "OUTPUT0" }',
    "classes-beyond": GOOD + 'output { name: "OUTPUT0" cls { count: 4294967295 } }',
    "classes-zero": GOOD + 'output { name: "OUTPUT0" cls { count: 0 } }',
    "many-inputs": "".join(f'input {{ name: "I{n}" }} ' for n in range(400)),
    "many-outputs": GOOD + "".join(f'output {{ name: "O{n}" }} ' for n in range(300)),
    "shared-memory": GOOD.replace("dims: 16", 'dims: 16 shared_memory { name: "r" offset: 1 }'),
    "bad-escape": r'input { name: "\q" }',
    "octal-escape": r'input { name: "\777" }',
    "hex-escape": r'input { name: "\xff\x00" }',
    "newline-in-name": r'input { name: "a\nNV-Status: forged" }',
    "surrogate": r'input { name: "\ud800" }',
    "unclosed-string": 'input { name: "INPUT0',
    "long-name": 'input { name: "' + "n" * 5000 + '" }',
    "list-of-scalars": 'batch_size: [1, 2] input { name: ["a", "b"] }',
    "extension": "[some.extension]: 1",
    "any": "[type.googleapis.com/x.Y] { a: 1 }",
    "comment-only": "# nothing",
    "correlation-lies": GOOD + "correlation_id: 18446744073709551616",
    "flags-lie": GOOD + "flags: 4294967295 correlation_id: 1",
    "priority-lies": GOOD + "priority: -1",
    "timeout-now": GOOD + "timeout_microseconds: 1",
    "not-text": "%01 \x7e \x7c",
}

_ALLOWED = frozenset({200, 400, 404, 408, 413, 431, 501, 503, 504})


def send_header(patient: Patient, text: str, body: bytes = BODY, path: str = PATH) -> Answer | None:
    """Return the response to an inference whose header is *text*."""
    with Raw(patient.gateway.http) as raw:
        raw.send([post(body, f"NV-InferRequest: {text}", path=path)])
        return raw.answer()


def fit_for_a_client(response: Answer | None) -> bool:
    """Return whether a response is good or a client's error, without internals."""
    assert response is not None
    assert b"Traceback" not in response.body
    assert "\n" not in (response.get("nv-status") or "")
    return response.status in _ALLOWED


def test_good_request_succeeds(patient: Patient) -> None:
    """The request that the hostile ones are made from succeeds."""
    response = send_header(patient, GOOD + OUTPUTS)
    assert response is not None
    assert 200 == response.status


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_headers_are_client_errors(patient: Patient, name: str) -> None:
    """No header crashes or hangs the gateway or becomes a server error."""
    assert fit_for_a_client(send_header(patient, TEXTS[name])), name


@pytest.mark.parametrize("size", [0, 1, 127, 129, 4096])
def test_bodies_of_another_size_are_rejected(patient: Patient, size: int) -> None:
    """A body shorter or longer than its inputs is an error that names the sizes."""
    response = send_header(patient, GOOD + OUTPUTS, bytes(size))
    assert response is not None
    assert 400 == response.status
    assert "bytes" in (response.get("nv-status") or "")


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/infer",
        "/api/infer/",
        "/api/infer/simple/x",
        "/api/infer/%ff",
        "/api/status/",
        "/api/infer/simple/99999999999999999999",
        "/api/infer/nope",
        "/api/health/maybe",
        "/api/modelcontrol/load/simple",
        "/api/sharedmemory/register/r/k/0/64",
        "/api/nope",
    ],
)
def test_unknown_paths_are_rejected(patient: Patient, path: str) -> None:
    """Unknown paths, versions and models, and disabled calls, get a valid error."""
    response = send_header(patient, GOOD, path=path)
    assert fit_for_a_client(response) and response is not None and response.status != 200  # noqa: PT018


def test_damaged_headers_are_read_or_rejected(patient: Patient) -> None:
    """Three hundred headers have letters changed, cut or doubled."""
    luck = random.Random(7)  # noqa: S311  # cases, no secrets
    good = GOOD + OUTPUTS
    for _ in range(300):
        at = luck.randrange(len(good))
        letter = luck.choice("{}[]<>:;,\"'\\#-0aZ. ")
        text = luck.choice(
            [good[:at], good[:at] + letter + good[at + 1 :], good[:at] + good[at // 2 :]]
        )
        assert fit_for_a_client(send_header(patient, text)), text
