"""Hostile JSON over HTTP is rejected with a reason, and the connection stays usable."""

from __future__ import annotations

import json

import pytest

from tests.hostile.json_cases import DEEP, ROW, cases, request, tensor
from tests.hostile.judge import Patient, attack, refused
from tests.hostile.wire import post

pytestmark = pytest.mark.hostile

CASES = cases()
# 404: a region of shared memory that nobody registered, or may.
_ALLOWED = frozenset({400, 404, 413, 501})


def _infer(model: str) -> str:
    return f"/v2/models/{model}/infer"


@pytest.mark.parametrize("name", CASES)
def test_hostile_json_is_rejected(patient: Patient, name: str) -> None:
    """The client gets one response with an error of the client."""
    model, body = CASES[name]
    outcome = attack(patient, post(body, path=_infer(model)))
    assert refused(outcome, _ALLOWED), outcome
    assert not outcome.closed


LEGAL = {
    "unknown_members": request(ROW, x=[1, {"a": None}], id="a"),
    "unknown_tensor_members": request({**ROW, "x": {"y": [1]}}),
    "depth_64": b'{"inputs":[%b],"x":%b1%b}' % (json.dumps(ROW).encode(), b"[" * 60, b"]" * 60),
    "bom": b"\xef\xbb\xbf" + request(ROW),
    "escaped_keys": request(ROW).replace(b"name", b"n\\u0061me"),
    "rank_32": request(tensor(shape=[1] * 32)),
    "zero_times_most": request(tensor(shape=[0, 2**40], data=[])),
    "empty": request(tensor(shape=[0], data=[])),
    "colons_in_text": request(ROW, id=":::::::"),
    "name_1024": request(ROW, id="n" * 1024),
    "emoji": request(ROW, id="\U0001f600"),
    "classes": request(ROW, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 3}}]),
    "parameters_64": request(ROW, parameters={f"p{n}": n for n in range(64)}),
}


@pytest.mark.parametrize("name", LEGAL)
def test_unusual_valid_json_succeeds(patient: Patient, name: str) -> None:
    """Unusual requests within the limits succeed."""
    outcome = attack(patient, post(LEGAL[name], path=_infer("identity_int32")))
    assert [200] == [response.status for response in outcome.answers]


@pytest.mark.parametrize("path", ["/v2", "/v2/models", "/v2/models/simple", "/v2/health/ready"])
def test_unexpected_bodies_are_ignored(patient: Patient, path: str) -> None:
    """A body on a request without one is read and ignored."""
    body = b"[" * DEEP
    data = post(body, path=path).replace(b"POST", b"GET", 1)
    outcome = attack(patient, data)
    assert [200] == [response.status for response in outcome.answers]


ACTIONS = ("infer_stream", "generate_stream", "generate")


@pytest.mark.parametrize(
    ("name", "action"), [(name, ACTIONS[at % len(ACTIONS)]) for at, name in enumerate(CASES)]
)
def test_hostile_json_is_rejected_before_a_stream(patient: Patient, name: str, action: str) -> None:
    """The error has a status, since no stream has begun; the actions take turns at the cases."""
    model, body = CASES[name]
    outcome = attack(patient, post(body, path=f"/v2/models/{model}/{action}"))
    assert refused(outcome, _ALLOWED), outcome
    assert not outcome.closed


FLAT = {
    "depth": b'{"INPUT0":%b%b}' % (b"[" * DEEP, b"]" * DEEP),
    "no_object": b"[1]",
    "null": b'{"INPUT0":null}',
    "objects": b'{"INPUT0":[{"a":1}]}',
    "nested": b'{"INPUT0":[[1]]}',
    "twice": b'{"INPUT0":1,"INPUT0":2}',
    "twice_escaped": b'{"INPUT0":1,"INPUT\\u0030":2}',
    "both": b'{"INPUT0":1,"parameters":{"INPUT0":2}}',
    "many": b"{%b}" % b",".join(b'"a%d":1' % number for number in range(5000)),
    "values": b'{"INPUT0":[%b0]}' % (b"0," * 1_100_000),
    "long_name": b'{"%b":1}' % (b"a" * 5000),
    "control": b'{"a\\u0000":1}',
    "huge_integer": b'{"INPUT0":%b}' % (b"9" * 5000),
    "float": b'{"INPUT0":1.5}',
    "text": b'{"INPUT0":"1"}',
    "out_of_range": b'{"INPUT0":2147483648}',
    "nan": b'{"INPUT0":NaN}',
    "reserved": b'{"INPUT0":1,"triton_x":1}',
    "sequence": b'{"INPUT0":1,"sequence_id":-1}',
    "list_of_no_input": b'{"INPUT0":1,"x":[1,2]}',
    "surrogate": b'{"INPUT0":"\\ud800"}',
    "no_text": b'{"INPUT0":"\xff"}',
}


@pytest.mark.parametrize("action", ["generate", "generate_stream"])
@pytest.mark.parametrize("name", FLAT)
def test_hostile_generate_requests_are_rejected(patient: Patient, name: str, action: str) -> None:
    """The generate extension is as strict as an inference request."""
    path = f"/v2/models/identity_int32/{action}"
    outcome = attack(patient, post(FLAT[name], path=path))
    assert refused(outcome, _ALLOWED), outcome
    assert not outcome.closed
