"""Hostile binary bodies and content codings over HTTP."""

from __future__ import annotations

import gzip

import pytest

from tests.hostile.binary_cases import cases, document
from tests.hostile.judge import Patient, attack, refused
from tests.hostile.wire import GOOD_BODY, chunk, chunked, head, post

pytestmark = pytest.mark.hostile

CASES = cases()
_ALLOWED = frozenset({400, 413, 415, 501})


@pytest.mark.parametrize("name", CASES)
def test_invalid_binary_body_is_rejected(patient: Patient, name: str) -> None:
    """The client gets one response with an error of the client."""
    model, fields, body = CASES[name]
    outcome = attack(patient, post(body, *fields, path=f"/v2/models/{model}/infer"))
    assert refused(outcome, _ALLOWED), outcome


def test_inflated_json_has_its_own_limit(patient: Patient) -> None:
    """JSON below the message limit and above its own is rejected after inflating."""
    body = gzip.compress(b'{"inputs": [], "x": [' + b"1, 2, 3, " * 200_000 + b"1]}", 1)
    outcome = attack(patient, post(body, "Content-Encoding: gzip"))
    assert refused(outcome, frozenset({413})), outcome


def test_declared_size_over_the_limit_is_rejected_unread(patient: Patient) -> None:
    """The declared length suffices, also with Expect."""
    for fields in ((), ("Expect: 100-continue",), ("Content-Encoding: gzip",)):
        data = head("POST", "/v2/models/simple/infer", *fields, "Content-Length: 4194305")
        outcome = attack(patient, data)
        assert (True, [413]) == (outcome.closed, [each.status for each in outcome.answers])


def test_chunked_body_over_the_limit_is_cut(patient: Patient) -> None:
    """A body without a length is rejected once it exceeds the limit."""
    outcome = attack(patient, chunked(), *[chunk(bytes(65_536))] * 80, b"0\r\n\r\n")
    assert refused(outcome, frozenset({413})), outcome
    assert outcome.closed


def test_chunk_count_is_limited(patient: Patient) -> None:
    """Chunks cost more than their bytes, so their number is limited."""
    outcome = attack(patient, chunked(), *[chunk(b" ") * 500] * 6, b"0\r\n\r\n")
    assert refused(outcome, frozenset({413})), outcome


@pytest.mark.parametrize("count", [1, 100])
def test_empty_binary_tensors_are_accepted(patient: Patient, count: int) -> None:
    """Sizes of zero are valid for shapes of zero."""
    text = document(0, shape=[0, 2**40])
    path = "/v2/models/identity_int32/infer"
    for _ in range(count):
        field = f"Inference-Header-Content-Length: {len(text)}"
        outcome = attack(patient, post(text, field, path=path))
        assert [200] == [response.status for response in outcome.answers]


LEGAL = {
    "gzip": ("gzip", gzip.compress(GOOD_BODY)),
    "x_gzip": ("x-gzip", gzip.compress(GOOD_BODY)),
    "identity": ("identity", GOOD_BODY),
    "empty": ("", GOOD_BODY),
    "upper": ("GZIP", gzip.compress(GOOD_BODY)),
}


@pytest.mark.parametrize("name", LEGAL)
def test_valid_codings_are_decoded(patient: Patient, name: str) -> None:
    """One coding is decoded in any spelling."""
    coding, body = LEGAL[name]
    outcome = attack(patient, post(body, f"Content-Encoding: {coding}"))
    assert (False, ()) == (outcome.closed, outcome.answers)
