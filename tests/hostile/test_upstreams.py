"""Hostile inputs through a gateway with an upstream: they never reach the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

from tests.hostile import binary_cases, grpc_cases, json_cases
from tests.hostile.judge import CLIENTS_FAULT, INFER, Patient, bugs_of, judged
from tests.hostile.process import Gateway, running
from tests.hostile.test_http_paths import NAMES
from tests.hostile.wire import GOOD_BODY, LAST_GOOD, Raw, ask, head, is_good, post

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(120)]

_FREE = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")
_MIB = 1 << 20


@pytest.fixture(scope="module", params=["http", "grpc"])
def front(request: pytest.FixtureRequest, patient: Patient) -> Iterator[Gateway]:
    """A sidecar of the gateway under attack, with the limits of D1."""
    kind = request.param
    upstream = f"oip+{kind}://{patient.gateway.address(f'main.{kind}')}"
    with running("--upstream", upstream, *_FREE) as gateway:
        assert is_good(ask(gateway.http, LAST_GOOD))
        memory = gateway.status("VmRSS")
        yield gateway
        assert is_good(ask(gateway.http, LAST_GOOD))
        assert gateway.status("VmRSS") - memory < 64 * _MIB
        assert "Traceback" not in bugs_of(gateway)


def _statuses(front: Gateway, requests: Iterator[tuple[str, bytes]]) -> dict[str, int]:
    """Send requests of valid framing one after another; return those that are not rejected."""
    odd = {}
    with ExitStack() as stack:
        raw = stack.enter_context(Raw(front.http))
        for name, data in requests:
            assert raw.send([data]), name
            response = raw.answer()
            assert response is not None, name
            if judged(response).status not in (400, 404, 405, 413, 415, 431, 501):
                odd[name] = response.status
            if response.closes:
                raw = stack.enter_context(Raw(front.http))
    return odd


def test_hostile_json_is_rejected(front: Gateway) -> None:
    """JSON that could harm a server is rejected before it, or by it with the same text."""
    table = json_cases.cases().items()
    requests = (
        (name, post(body, path=f"/v2/models/{model}/infer")) for name, (model, body) in table
    )
    # Good by the limits of the front, and sent on in binary.
    assert {"more_than_a_mebibyte": 200} == _statuses(front, requests)


def test_hostile_bodies_are_rejected(front: Gateway) -> None:
    """This holds for binary bodies and codings, also between the limits of both gateways."""
    table = binary_cases.cases().items()
    requests = (
        (name, post(body, *fields, path=f"/v2/models/{model}/infer"))
        for name, (model, fields, body) in table
    )
    assert {} == _statuses(front, requests)


def test_hostile_names_are_rejected(front: Gateway) -> None:
    """Names never become other paths of the server, nor headers."""
    requests = (
        (name, data)
        for name, text in NAMES.items()
        for data in (
            head("GET", f"/v2/models/{text}"),
            post(GOOD_BODY, path=f"/v2/models/{text}/infer"),
        )
    )
    assert {} == _statuses(front, requests)


def test_hostile_grpc_messages_are_client_errors(front: Gateway) -> None:
    """GRPC messages are refused as the client's fault."""
    odd = {}
    with grpc.insecure_channel(front.address("main.grpc")) as channel:
        infer = channel.unary_unary(INFER)
        for name, message in grpc_cases.cases().items():
            code = infer.future(message, timeout=30).exception()
            if code is None or code.code() not in CLIENTS_FAULT:
                odd[name] = code
    assert {} == odd


@pytest.mark.parametrize(
    "text", ["a\u2028b", "é\U0001f600", '"}\\', "%0d%0a", "${env:HOME}", " lead", "x" * 1024]
)
def test_unusual_ids_are_returned_unchanged(front: Gateway, text: str) -> None:
    """An id is text and is returned unchanged, whatever it contains."""
    body = json.loads(GOOD_BODY) | {"id": text, "parameters": {"x" + text[:100]: text[:100]}}
    response = ask(front.http, post(json.dumps(body).encode()))
    assert response is not None
    assert (200, text) == (response.status, response.json["id"])


def test_unknown_names_use_no_memory(front: Gateway) -> None:
    """Names that the server does not have are not stored."""
    memory = front.status("VmRSS")
    requests = (
        (str(number), head("GET", f"/v2/models/invented_{number}")) for number in range(2000)
    )
    assert {} == _statuses(front, requests)
    assert front.status("VmRSS") - memory < 8 * _MIB


def test_unusual_headers_are_forwarded_or_dropped(front: Gateway) -> None:
    """Headers that one transport cannot carry do no harm."""
    fields = (
        *("X-Request-Id: " + "é" * 10, "traceparent: \u00ff", "grpc-timeout: 99999999H"),
        *("X-Request-Timeout: -1", "grpc-encoding: gzip", "te: trailers", "x-bin-bin: !!"),
        *("Inference-Header-Content-Length-X: 1", "Connection: X-Request-Id"),
    )
    for each in (*((field,) for field in fields), fields):
        response = ask(front.http, post(GOOD_BODY, *each))
        assert response is not None
        assert response.status in (200, 400), each
