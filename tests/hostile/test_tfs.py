"""Hostile requests of TensorFlow Serving and KServe V1, over REST and gRPC."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from gateway.schema import tensorflow_messages_pb2
from gateway.schema import tensorflow_serving_pb2 as pb
from tests.hostile.judge import CLIENTS_FAULT, Patient, attack, check_text, refused
from tests.hostile.wire import post

pytestmark = pytest.mark.hostile

SERVICE = "/tensorflow.serving.PredictionService/"
SECONDS = 30.0
DEEP = 100_000
REFUSED_CODES = CLIENTS_FAULT | {grpc.StatusCode.FAILED_PRECONDITION}
_ALLOWED = frozenset({400, 404, 413, 501})
_NUMBER = b"1" * 5000

BODIES: dict[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "list": b"[1]",
    "open": b'{"instances":[1',
    "no_rows": b'{"instances":[]}',
    "both": b'{"instances":[1],"inputs":[1]}',
    "neither": b"{}",
    "null_rows": b'{"instances":null}',
    "null_value": b'{"instances":[null]}',
    "null_columns": b'{"inputs":null}',
    "no_columns": b'{"inputs":{}}',
    "text": b'{"instances":["1"]}',
    "boolean": b'{"instances":[true]}',
    "fraction": b'{"instances":[1.5]}',
    "exponent": b'{"instances":[1e2]}',
    "too_large": b'{"instances":[2147483648]}',
    "long_number": b'{"instances":[' + _NUMBER + b"]}",
    "huge_float": b'{"instances":[1e400]}',
    "nan": b'{"instances":[NaN]}',
    "ragged": b'{"instances":[[1],[2,3]]}',
    "mixed": b'{"instances":[{"INPUT0":1},2]}',
    "other_keys": b'{"instances":[{"INPUT0":1},{"OTHER":1}]}',
    "unknown": b'{"instances":[{"OTHER":1}]}',
    "empty_object": b'{"instances":[{}]}',
    "twice": b'{"instances":[1],"instances":[2]}',
    "twice_within": b'{"instances":[{"INPUT0":1,"INPUT0":2}]}',
    "surrogate": b'{"instances":["\\ud800"]}',
    "invalid_utf8": b'{"instances":["\xff"]}',
    "signature": b'{"signature_name":5,"instances":[1]}',
    "unknown_signature": b'{"signature_name":"nope","instances":[1]}',
    "deep_rows": b'{"instances":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep_other": b'{"x":' + b"[" * DEEP + b"]" * DEEP + b',"instances":[1]}',
    "object_value": b'{"instances":[[{"a":1}]]}',
    "b64": b'{"instances":[{"b64":"A"}]}',
    "b64_number": b'{"instances":[{"b64":1}]}',
    "many_keys": json.dumps({"instances": [{f"k{each}": 1 for each in range(20_000)}]}).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_hostile_rows_are_rejected(patient: Patient, name: str) -> None:
    """The client gets one response with an error of the client."""
    data = post(BODIES[name], path="/v1/models/identity_int32:predict")
    outcome = attack(patient, data)
    assert refused(outcome, _ALLOWED), outcome
    assert not outcome.closed


@pytest.mark.parametrize("verb", ["classify", "regress"])
@pytest.mark.parametrize("body", [b"{}", b'{"examples":[{"x":1}]}', b'{"examples":[[[]]]}'])
def test_examples_of_undeclared_signatures_are_rejected(
    patient: Patient, verb: str, body: bytes
) -> None:
    """Only a declaration makes a model one of examples."""
    outcome = attack(patient, post(body, path=f"/v1/models/identity_int32:{verb}"))
    assert refused(outcome, _ALLOWED), outcome


PATHS = [
    "/v1/models/",
    "/v1/models/..:predict",
    "/v1/models/%2e%2e:predict",
    "/v1/models/a%00:predict",
    "/v1/models/a%:predict",
    "/v1/models/%ff:predict",
    "/v1/models/a/versions/99999999999999999999:predict",
    "/v1/models/a/versions/-1:predict",
    "/v1/models/a/versions/1/labels/b:predict",
    "/v1/models/a:b:predict",
    "/v1/models/" + "a" * 300 + ":predict",
]


@pytest.mark.parametrize("path", PATHS)
def test_hostile_paths_are_rejected(patient: Patient, path: str) -> None:
    """A path is never another model's."""
    outcome = attack(patient, post(b'{"instances":[1]}', path=path))
    assert refused(outcome, _ALLOWED), outcome


def request(change: Callable[[Any], object] | None = None) -> bytes:
    """Return a request, good but for what *change* does to its tensor."""
    message = pb.PredictRequest()
    message.model_spec.name = "identity_int32"
    tensor = message.inputs["INPUT0"]
    tensor.dtype = 3  # type: ignore[assignment]  # DT_INT32
    tensor.tensor_shape.dim.add(size=4)
    tensor.tensor_content = bytes(16)
    if change is not None:
        change(tensor)
    return message.SerializeToString()


def fields(**values: Any) -> Callable[[Any], object]:
    """Return what replaces a tensor's content by other fields."""

    def change(tensor: Any) -> None:
        tensor.ClearField("tensor_content")
        tensor.MergeFrom(tensorflow_messages_pb2.TensorProto(**values))

    return change


def shape(*dims: int) -> Callable[[Any], object]:
    """Return what gives a tensor another shape."""

    def change(tensor: Any) -> None:
        del tensor.tensor_shape.dim[:]
        for dim in dims:
            tensor.tensor_shape.dim.add(size=dim)

    return change


def datatype(number: int) -> Callable[[Any], object]:
    """Return what gives a tensor another datatype."""
    return lambda one: setattr(one, "dtype", number)


def unknown_rank(tensor: Any) -> None:
    tensor.tensor_shape.unknown_rank = True


def filled(tensor: Any) -> None:
    shape(1 << 24)(tensor)
    fields(int_val=[1])(tensor)


MESSAGES: dict[str, bytes] = {
    "garbage": b"\xff" * 64,
    "open": request()[:-1],
    "short_content": request(lambda one: setattr(one, "tensor_content", bytes(15))),
    "long_content": request(lambda one: setattr(one, "tensor_content", bytes(17))),
    "negative": request(shape(-1)),
    "overflow": request(shape(1 << 62, 1 << 62)),
    "zero_times_huge": request(shape(0, 1 << 62, 1 << 62)),
    "unknown_rank": request(unknown_rank),
    "rank": request(shape(*[1] * 100)),
    "too_many": request(fields(int_val=[1] * 5)),
    "other_field": request(fields(float_val=[1.0])),
    "two_fields": request(fields(float_val=[1.0], int_val=[1])),
    "amplified": request(filled),
    **{f"dtype_{number}": request(datatype(number)) for number in (0, 8, 11, 20, 21, 101, 123, 99)},
    "duplicate_filter": request() + b"\x1a\x01A\x1a\x01A",
    "no_model": request().replace(b"identity_int32", b""),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_hostile_messages_are_rejected(patient: Patient, name: str) -> None:
    """The status tells the client that the fault is its own."""
    with pytest.raises(grpc.RpcError) as caught:
        call(patient, "Predict", MESSAGES[name])
    assert caught.value.code() in REFUSED_CODES
    check_text(caught.value.details() or "")
    assert patient.infers()


def test_damaged_messages_never_fail_the_gateway(patient: Patient) -> None:
    """A message with a changed, missing or added byte has a reply, or is refused by name."""
    rng = random.Random(37)  # noqa: S311  # the same damage in every run
    good = request()
    codes: set[Any] = set()
    for _ in range(300):
        at = rng.randrange(len(good))
        damaged = good[:at] + bytes([rng.randrange(256)]) + good[at + rng.randrange(3) :]
        for method in ("Predict", "Classify", "GetModelMetadata"):
            try:
                call(patient, method, damaged)
            except grpc.RpcError as error:
                codes.add(error.code())
    assert codes <= REFUSED_CODES
    assert patient.infers()


def call(patient: Patient, method: str, message: bytes) -> bytes:
    """Return the response to a message."""
    found: bytes = patient.channel.unary_unary(SERVICE + method)(message, timeout=SECONDS)
    return found
