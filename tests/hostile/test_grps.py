"""Hostile grps over HTTP and gRPC: the golden set's bad messages, invalid and damaged ones.

A client's error is a FAILURE in grps's own form; frames of brpc are in test_brpc.py.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.schema import grps_pb2 as pb
from tests.hostile.judge import CLIENTS_FAULT, Patient, check_text
from tests.hostile.test_mutations import altered, damaged
from tests.hostile.wire import Answer, Raw, chunk, chunked, head, post

pytestmark = pytest.mark.hostile

GOLDEN = Path(__file__).parents[1] / "golden" / "grps"
PATH = "/grps/v1/infer/predict"
JSON = "Content-Type: application/json"
SERVICE = "/grps.protos.v1.GrpsService/"
ROW = list(range(16))
GOOD = {
    "model": "simple",
    "gtensors": {
        "tensors": [
            {"name": name, "dtype": "DT_INT32", "shape": [1, 16], "flat_int32": ROW}
            for name in ("INPUT0", "INPUT1")
        ]
    },
}
_STATUSES = frozenset({200, 400, 404, 413, 501})


def send(patient: Patient, *pieces: bytes | float) -> Answer:
    """Return the response to one request."""
    with Raw(patient.gateway.http) as raw:
        raw.send(pieces)
        response = raw.answer()
    assert response is not None
    return response


def judged(response: Answer) -> int:
    """Assert that this is a valid grps response, good or a client's error; return its status."""
    document = response.json
    status = document["status"]
    assert response.status == status["code"]
    assert response.status in _STATUSES, document
    if response.status != 200:
        assert {"status"} == document.keys()
        assert "FAILURE" == status["status"]
        check_text(status["msg"])
    return int(response.status)


def post_json(patient: Patient, body: bytes, path: str = PATH) -> int:
    """Return the status of the response to a JSON body."""
    return judged(send(patient, post(body, JSON, path=path)))


def call_grpc(patient: Patient, method: str, data: bytes) -> tuple[grpc.StatusCode, int]:
    """Return the status of a gRPC call, and the code in its message's Status."""
    ask = patient.channel.unary_unary(SERVICE + method)
    try:
        message = pb.GrpsMessage.FromString(ask(data, timeout=30))
    except grpc.RpcError as error:
        check_text(error.details() or "")
        return error.code(), 0
    if message.status.code != 200:
        assert pb.Status.FAILURE == message.status.status
        check_text(message.status.msg)
    return grpc.StatusCode.OK, message.status.code


def good(**members: Any) -> bytes:
    """Write the good request with *members* changed."""
    return json.dumps({**GOOD, **members}).encode()


def tensor(**members: Any) -> bytes:
    """Write a request whose one tensor has *members* changed."""
    one = {"name": "INPUT0", "dtype": "DT_INT32", "shape": [1], "flat_int32": [1], **members}
    return good(gtensors={"tensors": [one]})


def test_good_request_succeeds(patient: Patient) -> None:
    """The request that the hostile ones are made from succeeds."""
    assert 200 == post_json(patient, good())


@pytest.mark.parametrize(
    "file", sorted((GOLDEN / "json").glob("neg_*")), ids=lambda path: path.stem
)
def test_bad_json_of_the_golden_set_is_a_failure(patient: Patient, file: Path) -> None:
    """Each is a FAILURE with a reason and its code as HTTP status."""
    assert post_json(patient, file.read_bytes(), f"{PATH}?model=identity_int32") in (400, 413)


@pytest.mark.parametrize("file", sorted((GOLDEN / "pb").glob("neg_*")), ids=lambda path: path.stem)
@pytest.mark.parametrize("method", ["Predict", "PredictStreaming"])
def test_bad_protobuf_of_the_golden_set_is_a_failure(
    patient: Patient, file: Path, method: str
) -> None:
    """Each is a FAILURE in the message; an unreadable message ends the call."""
    data = pb.GrpsMessage(model="identity_int32").SerializeToString() + file.read_bytes()
    if method == "Predict":
        code, status = call_grpc(patient, method, data)
        assert (code in CLIENTS_FAULT and status == 0) or status in (400, 413), (code, status)
        return
    stream = patient.channel.unary_stream(SERVICE + method)(data, timeout=30)
    with suppress(grpc.RpcError):
        (only,) = stream
        assert pb.GrpsMessage.FromString(only).status.code in (400, 413)
    assert stream.code() in CLIENTS_FAULT | {grpc.StatusCode.OK}


DEEP = 100_000
DOCUMENTS = {
    "empty": b"",
    "nothing": b"{}",
    "list": b"[]",
    "null": b"null",
    "not-text": b"\xff\xfe{",
    "utf16": '{"str_data": "x"}'.encode("utf-16"),
    "key-twice": b'{"str_data": "a", "str_data": "b", "model": "identity_bytes"}',
    "model-twice": b'{"model": "simple", "model": "fail", "str_data": "x"}',
    "two-documents": good() + good(),
    "deep-lists": b'{"ndarray": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep-objects": b'{"a": ' * DEEP + b"1" + b"}" * DEEP,
    "deep-gmap": good(gmap={"s_s": {"a": {"b": "c"}}}, gtensors=None),
    "shape-huge": tensor(shape=[4294967295] * 3),
    "shape-over-32-bits": tensor(shape=[4294967296]),
    "shape-negative": tensor(shape=[-1]),
    "shape-text": tensor(shape=["x"]),
    "shape-nested": tensor(shape=[[1]]),
    "rank-100": tensor(shape=[1] * 100),
    "zero-times-huge": tensor(shape=[0, 4294967295, 4294967295], flat_int32=[]),
    "no-data": tensor(flat_int32=None),
    "other-field": tensor(flat_int32=None, flat_float32=[1.0]),
    "both-fields": tensor(flat_float32=[1.0]),
    "both-doubles": tensor(dtype="DT_FLOAT64", flat_float64=[1], flat_double=[1], flat_int32=None),
    "dtype-lower": tensor(dtype="dt_int32"),
    "dtype-99": tensor(dtype=99),
    "dtype-zero": tensor(dtype=0),
    "dtype-list": tensor(dtype=["DT_INT32"]),
    "int-fraction": tensor(flat_int32=[1.5]),
    "int-huge": tensor(flat_int32=[2**31]),
    "int-longer": tensor(flat_int32=[10**400]),
    "int-words": tensor(flat_int32=["one"]),
    "int-bool": tensor(flat_int32=[True]),
    "int-null": tensor(flat_int32=[None]),
    "uint8-wraps": tensor(dtype="DT_UINT8", flat_int32=None, flat_uint8=[256]),
    "half-overflows": tensor(dtype="DT_FLOAT16", flat_int32=None, flat_float16=[70000]),
    "name-number": tensor(name=5),
    "name-long": tensor(name="n" * 5000),
    "name-control": tensor(name="a\nb"),
    "many-tensors": good(
        gtensors={"tensors": [{"dtype": 4, "shape": [1], "flat_int32": [1]}] * 400}
    ),
    "tensors-object": good(gtensors={"tensors": {}}),
    "model-long": good(model="m" * 5000),
    "model-control": good(model="a\u0000b"),
    "base64-garbage": good(gtensors=None, gmap={"s_b": {"k": "***"}}),
    "map-keys": good(gtensors=None, gmap={"s_i32": {str(n): n for n in range(5000)}}),
    "text-surrogate": b'{"str_data": "\\ud800", "model": "identity_bytes"}',
    "bin-in-json": good(gtensors=None, bin_data="AAE="),
}
ACCEPTED = {"text-surrogate"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_hostile_json_is_a_client_error(patient: Patient, name: str) -> None:
    """No document crashes or hangs the gateway or becomes a server error."""
    status = post_json(patient, DOCUMENTS[name])
    assert status != 200 or name in ACCEPTED


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ((), b"{}"),
        (("Content-Type: text/plain",), b"{}"),
        (("Content-Type:",), b"{}"),
        ((JSON, "Content-Type: text/plain"), b"{}"),
        (("Content-Type: " + "x" * 3000,), b"{}"),
        (("Content-Type: application/octet-stream",), b""),
        (("Content-Type: application/json; charset=utf-16",), "{}".encode("utf-16")),
    ],
)
def test_invalid_content_types_are_rejected(
    patient: Patient, fields: tuple[str, ...], body: bytes
) -> None:
    """Two content types, none, or one that is not of grps is rejected."""
    assert send(patient, post(body, *fields, path=PATH)).status in (400, 415)


@pytest.mark.parametrize(
    "query",
    [
        "model=%ff",
        "model=" + "m" * 3000,
        "&" * 500,
        "model=simple&" + "a=b&" * 200,
        "streaming=true&return-ndarray=true",
        "%00",
        "model=a%0ab",
        "=" * 100,
    ],
)
def test_hostile_queries_are_read_or_rejected(patient: Patient, query: str) -> None:
    """A good body does not make an invalid query valid."""
    status = post_json(patient, good(model=""), f"{PATH}?{query}")
    assert status in (200, 400, 404, 413)


@pytest.mark.parametrize(
    "path",
    [
        "/grps",
        "/grps/",
        "/grps/v1",
        "/grps/v2/infer/predict",
        "/grps/v1/infer/predict/",
        "/grps/v1//infer/predict",
        "/grps/v1/infer/%70redict",
        "/grps/v1/health/offline",
        "/grps/v1/monitor/series?name=" + "x" * 2000,
        "/grps/v1/" + "a/" * 2000,
        "/GrpsBrpcService/Nothing",
        "/grps.protos.v1.GrpsBrpcService/PredictStreaming",
        "/grps.protos.v1.GrpsService/Predict",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_paths_and_methods_are_rejected(patient: Patient, path: str, method: str) -> None:
    """The error of unknown paths and methods and of the disabled switch has a text."""
    response = send(patient, head(method, path, JSON, "Content-Length: 0"))
    assert response.status in (400, 403, 404, 405, 414), response
    check_text(response.body.decode())


def test_invalid_stream_request_is_rejected_before_the_stream(patient: Patient) -> None:
    """The status is that of the request without streaming."""
    assert post_json(patient, good(model="nobody"), f"{PATH}?streaming=true") == 404
    assert post_json(patient, b"{", f"{PATH}?streaming=true") == 400


def test_body_in_chunks_of_one_byte_is_read(patient: Patient) -> None:
    """A body in chunks of one byte is one body."""
    crumbs = [chunk(good()[at : at + 1]) for at in range(len(good()))]
    assert 200 == judged(send(patient, chunked(*crumbs, b"0\r\n\r\n", fields=(JSON,), path=PATH)))


SCORE = {"rows": [{"values": [9]}, {"values": [1, 2]}], "who": "me"}
BODIES = {
    "empty": b"",
    "list": b"[]",
    "nothing": b"{}",
    "rows-empty": b'{"rows": []}',
    "rows-object": b'{"rows": {"-1": {"values": [1]}}}',
    "rows-text": b'{"rows": "values"}',
    "values-null": b'{"rows": [{"values": null}]}',
    "values-text": b'{"rows": [{"values": ["one"]}]}',
    "values-object": b'{"rows": [{"values": [{"a": 1}]}]}',
    "values-float": b'{"rows": [{"values": [1.5]}]}',
    "values-huge": b'{"rows": [{"values": [9223372036854775807]}]}',
    "values-ragged": b'{"rows": [{"values": [[1], 2]}]}',
    "values-deep": b'{"rows": [{"values": ' + b"[" * DEEP + b"]" * DEEP + b"}]}",
    "values-rank-60": b'{"rows": [{"values": ' + b"[" * 40 + b"1" + b"]" * 40 + b"}]}",
    "who-list": json.dumps({**SCORE, "who": [1]}).encode(),
    "who-deep": json.dumps({**SCORE, "who": {"a": {}}}).encode(),
    "key-twice": b'{"rows": [], "rows": [{"values": [1]}]}',
    "stream-text": json.dumps({**SCORE, "stream": "true", "who": {}}).encode(),
    "many-values": json.dumps({"rows": [{"values": [1] * 300_000}]}).encode() * 2,
}


@pytest.mark.parametrize("name", BODIES)
def test_customised_routes_reject_invalid_bodies(patient: Patient, name: str) -> None:
    """The error has the route's form, with its code as HTTP status."""
    response = send(patient, post(BODIES[name], JSON, path="/v1/score"))
    assert response.status in (400, 413), response
    assert response.status == response.json["code"]
    check_text(response.json["error"])


def test_customised_routes_expand_templates_once(patient: Patient) -> None:
    """Placeholders in a client's text are not expanded."""
    for body, path, kind in (
        (json.dumps(SCORE).encode(), "/v1/score", JSON),
        (
            b"text=%24%7BOUTPUT0%7D%22%5D",
            "/v1/form",
            "Content-Type: application/x-www-form-urlencoded",
        ),
    ):
        response = send(patient, post(body, kind, path=path))
        assert 200 == response.status, response
        assert response.json in (
            {"values": [1, 2], "who": "said [1, 2]"},
            {"text": '${OUTPUT0}"]'},
        )


@pytest.mark.parametrize("seed", range(4))
def test_damaged_customised_bodies_are_client_errors(patient: Patient, seed: int) -> None:
    """A damaged body succeeds or is an error of the client."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time
    for _ in range(40):
        for body in (
            damaged(json.dumps(SCORE).encode(), chance),
            json.dumps(altered(SCORE, chance)).encode(),
        ):
            response = send(patient, post(body, JSON, path="/v1/score"))
            assert response.status in (200, 400, 413), (response, body)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_json_is_a_client_error(patient: Patient, seed: int) -> None:
    """Damaged JSON succeeds or is an error of the client."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time
    for _ in range(40):
        post_json(patient, damaged(good(), chance))
        post_json(patient, json.dumps(altered(GOOD, chance)).encode())


@pytest.mark.parametrize("seed", range(6))
def test_damaged_protobuf_is_a_client_error(patient: Patient, seed: int) -> None:
    """A damaged message succeeds, is a FAILURE, or ends the call as the client's error."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time
    files = sorted((GOLDEN / "pb").glob("req_*"))
    model = pb.GrpsMessage(model="identity_int32").SerializeToString()
    for _ in range(60):
        data = damaged(model + chance.choice(files).read_bytes(), chance)
        method = chance.choice(("Predict", "ModelMetadata", "CheckReadiness", "ServerMetadata"))
        code, status = call_grpc(patient, method, data)
        assert code in CLIENTS_FAULT | {grpc.StatusCode.OK}, (method, data)
        assert status in _STATUSES | {0, 503}, (method, status, data)
