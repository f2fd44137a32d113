"""Hostile TensorRT v1 over gRPC: invalid messages, alone and on streams.

The error of a message is in its response: the call ends with OK, and a stream continues.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc
import pytest

from gateway.schema import tensorrt_v1_pb2 as pb
from tests.hostile.judge import CLIENTS_FAULT, Patient, check_text

pytestmark = pytest.mark.hostile

SERVICE = "/nvidia.inferenceserver.GRPCService/"
INFER, STREAM = SERVICE + "Infer", SERVICE + "StreamInfer"
SECONDS = 30.0
HUGE = (1 << 63) - 1


def message(number: int = 0, change: Callable[[pb.InferRequest], object] | None = None) -> bytes:
    """Return a request with an id, good but for what *change* does to it."""
    request = pb.InferRequest(
        model_name="simple", model_version=-1, raw_input=[bytes(64), bytes(64)]
    )
    request.meta_data.batch_size = 1
    request.meta_data.id = number
    for name in ("INPUT0", "INPUT1"):
        request.meta_data.input.add(name=name, dims=[16])
    for name in ("OUTPUT0", "OUTPUT1"):
        request.meta_data.output.add(name=name)
    if change is not None:
        change(request)
    return request.SerializeToString()


def first(request: pb.InferRequest) -> pb.InferRequestHeader.Input:
    return request.meta_data.input[0]


def dims(*found: int) -> Callable[[pb.InferRequest], object]:
    def change(request: pb.InferRequest) -> None:
        first(request).dims[:] = found

    return change


def raws(*found: bytes) -> Callable[[pb.InferRequest], object]:
    def change(request: pb.InferRequest) -> None:
        del request.raw_input[:]
        request.raw_input.extend(found)

    return change


def header(**fields: Any) -> Callable[[pb.InferRequest], object]:
    return lambda request: request.meta_data.MergeFrom(pb.InferRequestHeader(**fields))


def output(index: int, **fields: Any) -> Callable[[pb.InferRequest], object]:
    def change(request: pb.InferRequest) -> None:
        request.meta_data.output[index].MergeFrom(pb.InferRequestHeader.Output(**fields))

    return change


LIES: Mapping[str, Callable[[pb.InferRequest], object]] = {
    "huge-dim": dims(HUGE),
    "product-over-64-bits": dims(1 << 32, 1 << 32),
    "zero-times-huge": dims(0, 1 << 60),
    "negative-dim": dims(-16),
    "rank-33": dims(*[1] * 33),
    "rank-10000": dims(*[1] * 10_000),
    "wrong-dim": dims(17),
    "batch-zero": lambda request: request.meta_data.ClearField("batch_size"),
    "batch-huge": header(batch_size=(1 << 32) - 1),
    "batch-two": header(batch_size=2),
    "size-lies": lambda request: setattr(first(request), "batch_byte_size", HUGE),
    "size-short": lambda request: setattr(first(request), "batch_byte_size", 1),
    "no-raw": raws(),
    "one-raw": raws(bytes(64)),
    "raw-short": raws(bytes(63), bytes(64)),
    "raw-long": raws(bytes(65), bytes(64)),
    "raw-empty": raws(b"", b""),
    "raw-of-the-other": raws(bytes(128), b""),
    "no-inputs": lambda request: request.meta_data.ClearField("input"),
    "unknown-input": lambda request: setattr(first(request), "name", "NOPE"),
    "nameless-input": lambda request: setattr(first(request), "name", ""),
    "input-twice": lambda request: setattr(first(request), "name", "INPUT1"),
    "control-in-name": lambda request: setattr(first(request), "name", "a\nNV-Status: forged"),
    "long-name": lambda request: setattr(first(request), "name", "n" * 5000),
    "many-inputs": header(input=[{"name": f"I{number}"} for number in range(400)]),
    "many-outputs": header(output=[{"name": f"O{number}"} for number in range(400)]),
    "unknown-output": output(0, name="NOPE"),
    "output-twice": output(0, name="OUTPUT1"),
    "classes-zero": output(0, cls={}),
    "region": lambda request: setattr(first(request).shared_memory, "name", "r"),
    "output-region": output(0, shared_memory={"name": "r", "offset": 1, "byte_size": 64}),
    "no-model": lambda request: request.ClearField("model_name"),
    "unknown-model": lambda request: setattr(request, "model_name", "nobody"),
    "long-model": lambda request: setattr(request, "model_name", "m" * 300),
    "control-in-model": lambda request: setattr(request, "model_name", "a\rb"),
    "version-zero": lambda request: setattr(request, "model_version", 0),
    "version-negative": lambda request: setattr(request, "model_version", -2),
    "version-huge": lambda request: setattr(request, "model_version", HUGE),
}
GARBAGE: Mapping[str, bytes] = {
    "ones": b"\xff" * 100,
    "cut": message()[:-9],
    "header-is-none": b"\x0a\x06simple\x1a\x03\xff\xff\xff",
    "groups": b"\x9b\x06" * 10_000,
    "end-of-no-group": b"\x0a\x06simple\x0c",
    "name-not-utf8": b"\x0a\x02\xff\xfe",
    "empty": b"",
}


@pytest.fixture(scope="module", params=["main", "native"])
def channel(patient: Patient, request: pytest.FixtureRequest) -> Iterator[grpc.Channel]:
    """A channel to either implementation of the gRPC server."""
    options = [("grpc.max_send_message_length", -1)]
    address = patient.gateway.address(f"{request.param}.grpc")
    with grpc.insecure_channel(address, options=options) as opened:
        yield opened


def read_response(data: bytes) -> pb.InferResponse:
    return pb.InferResponse.FromString(data)


def ask(channel: grpc.Channel, data: bytes, method: str = INFER) -> bytes:
    """Return the response of a call that must end with OK."""
    found: bytes = channel.unary_unary(method)(data, timeout=SECONDS)
    return found


def stream(channel: grpc.Channel, messages: Iterable[bytes]) -> list[pb.InferResponse]:
    """Return the responses on a stream that must end with OK."""
    call = channel.stream_stream(STREAM)(iter(messages), timeout=SECONDS)
    return [read_response(data) for data in call]


def refuses(found: pb.InferResponse) -> bool:
    """Return whether a response has an error for its request, and nothing else."""
    check_text(found.request_status.msg)
    assert not found.raw_output
    assert not found.meta_data.output
    wrong = (pb.INVALID_ARG, pb.UNAVAILABLE, pb.NOT_FOUND, pb.UNSUPPORTED)
    return found.request_status.code in wrong


def test_good_message_succeeds(channel: grpc.Channel) -> None:
    """The message that the hostile ones are made from succeeds."""
    found = read_response(ask(channel, message(7)))
    assert (pb.SUCCESS, 7, 2) == (
        found.request_status.code,
        found.meta_data.id,
        len(found.raw_output),
    )


@pytest.mark.parametrize("name", LIES)
def test_invalid_messages_are_rejected_with_their_id(channel: grpc.Channel, name: str) -> None:
    """The call ends with OK, and the response has an error and the id."""
    found = read_response(ask(channel, message(7, LIES[name])))
    assert refuses(found)
    assert 7 == found.meta_data.id


@pytest.mark.parametrize("name", LIES)
def test_invalid_stream_messages_are_rejected_in_order(channel: grpc.Channel, name: str) -> None:
    """Messages before and after succeed, in order: the client waits for each id."""
    found = stream(channel, [message(1), message(2, LIES[name]), message(3)])
    assert [1, 2, 3] == [one.meta_data.id for one in found]
    assert [True, False, True] == [one.request_status.code == pb.SUCCESS for one in found]
    assert refuses(found[1])


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_rejected_and_the_stream_continues(channel: grpc.Channel, name: str) -> None:
    """Bytes that are no message get an error, alone and on a stream."""
    assert refuses(read_response(ask(channel, GARBAGE[name])))
    found = stream(channel, [message(1), GARBAGE[name], message(3)])
    assert [1, 0, 3] == [one.meta_data.id for one in found]
    assert [True, False, True] == [one.request_status.code == pb.SUCCESS for one in found]


def test_surplus_raw_inputs_are_rejected(channel: grpc.Channel) -> None:
    """Three entries for two inputs are an error of the client."""
    found = read_response(ask(channel, message(1, raws(bytes(64), bytes(64), bytes(9)))))
    assert pb.INVALID_ARG == found.request_status.code


def test_every_bad_message_of_a_stream_gets_a_response(channel: grpc.Channel) -> None:
    """A stream of 500 invalid messages gets 500 responses, each with its id."""
    lies = list(LIES.values())
    bad = [message(number + 1, lies[number % len(lies)]) for number in range(500)]
    assert list(range(1, 501)) == [one.meta_data.id for one in stream(channel, bad)]


def test_empty_stream_ends_with_ok(channel: grpc.Channel) -> None:
    """A stream that is half-closed at once has no responses and no error."""
    assert [] == stream(channel, [])


def test_message_over_the_limit_is_a_client_error(channel: grpc.Channel) -> None:
    """It ends the stream with a status, or gets an error in a response."""
    large = message(2, raws(bytes(5 << 20), bytes(64)))
    call = channel.stream_stream(STREAM)(iter([message(1), large]), timeout=SECONDS)
    ids: list[int] = []
    try:
        ids.extend(read_response(data).meta_data.id for data in call)
    except grpc.RpcError as error:
        assert error.code() in CLIENTS_FAULT  # noqa: PT017  # there may be none
    # 0 is the refusal of what was never read whole, and so has no id.
    assert ids in ([], [0], [1], [1, 0])


def test_cancelled_streams_leave_nothing(channel: grpc.Channel) -> None:
    """Fifty streams are cancelled in the middle; the fixtures check for leftovers."""
    for number in range(50):
        messages = [message(one + 1) for one in range(number % 7 + 1)]
        call = channel.stream_stream(STREAM)(iter(messages), timeout=SECONDS)
        if number % 2:
            next(iter(call))
        call.cancel()


METHODS = ("Status", "Health", "Profile", "ModelControl", "SharedMemoryControl", "Repository")
SMALL: Mapping[str, bytes] = {
    "ones": b"\xff" * 100,
    "cut": b"\x0a\x05ab",
    "groups": b"\x9b\x06" * 10_000,
    "not-utf8": b"\x0a\x02\xff\xfe",
    "control": b"\x0a\x02a\n",
    "long": b"\x0a\xac\x02" + b"n" * 300,
    "unknown": b"\x0a\x06nobody",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SMALL)
def test_hostile_small_messages_are_rejected(channel: grpc.Channel, method: str, name: str) -> None:
    """Invalid status, health and control messages get an error in their response."""
    # Field 1 of every answer is its status.
    found = pb.HealthResponse.FromString(ask(channel, SMALL[name], SERVICE + method))
    assert found.request_status.code not in (pb.SUCCESS, pb.INVALID)
    check_text(found.request_status.msg)


def test_damaged_messages_are_read_or_rejected(channel: grpc.Channel) -> None:
    """Three hundred messages have bytes changed or cut: each gets a status of the client."""
    good = message(5)
    luck = random.Random(11)  # noqa: S311  # cases, no secrets
    for _ in range(300):
        damaged = bytearray(good)
        damaged[luck.randrange(len(damaged))] = luck.randrange(256)
        if luck.random() < 0.3:
            damaged = damaged[: luck.randrange(len(damaged))]
        status = read_response(ask(channel, bytes(damaged))).request_status
        assert status.code not in (pb.INVALID, pb.INTERNAL, pb.UNKNOWN), status
