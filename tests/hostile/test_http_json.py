"""Hostile JSON over HTTP: refused with a reason, on a connection that lives on."""

from __future__ import annotations

import json

import pytest

from tests.hostile.json_cases import DEEP, ROW, cases, request, tensor
from tests.hostile.judge import Patient, attack, refused
from tests.hostile.wire import post

pytestmark = pytest.mark.hostile

CASES = cases()
_ALLOWED = frozenset({400, 413, 501})


def _infer(model: str) -> str:
    return f"/v2/models/{model}/infer"


@pytest.mark.parametrize("name", CASES)
def test_hostile_json_is_refused(patient: Patient, name: str) -> None:
    """One answer says that the client is at fault; the connection goes on."""
    model, body = CASES[name]
    outcome = attack(patient, post(body, path=_infer(model)))
    assert refused(outcome, _ALLOWED), outcome
    assert not outcome.closed


LEGAL = {
    "unknown_members": request(ROW, x=[1, {"a": None}], id="a"),
    "unknown_tensor_members": request({**ROW, "x": {"y": [1]}}),
    "depth_64": b'{"inputs":[%b],"x":%b1%b}' % (json.dumps(ROW).encode(), b"[" * 60, b"]" * 60),
    "escaped_keys": request(ROW).replace(b"name", b"n\\u0061me"),
    "rank_32": request(tensor(shape=[1] * 32)),
    "zero_times_most": request(tensor(shape=[0, 2**40], data=[])),
    "empty": request(tensor(shape=[0], data=[])),
    "colons_in_text": request(ROW, id=":::::::"),
    "name_1024": request(ROW, id="n" * 1024),
    "emoji": request(ROW, id="\U0001f600"),
    "parameters_64": request(ROW, parameters={f"p{n}": n for n in range(64)}),
}


@pytest.mark.parametrize("name", LEGAL)
def test_odd_but_legal_json_is_answered(patient: Patient, name: str) -> None:
    """Odd requests within the limits are answered."""
    outcome = attack(patient, post(LEGAL[name], path=_infer("identity_int32")))
    assert [200] == [answer.status for answer in outcome.answers]


@pytest.mark.parametrize("path", ["/v2", "/v2/models", "/v2/models/simple", "/v2/health/ready"])
def test_bodies_of_questions_without_one(patient: Patient, path: str) -> None:
    """A body where none belongs is read and does no harm."""
    body = b"[" * DEEP
    data = post(body, path=path).replace(b"POST", b"GET", 1)
    outcome = attack(patient, data)
    assert [200] == [answer.status for answer in outcome.answers]
