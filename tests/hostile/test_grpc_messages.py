"""Hostile messages over gRPC are rejected with a status of the client, whatever their bytes."""

from __future__ import annotations

import grpc
import pytest

from gateway.schema import open_inference_pb2 as pb
from tests.hostile.grpc_cases import cases, request, tensor
from tests.hostile.judge import CANARY, CLIENTS_FAULT, INFER, Patient, check_text, good_call

pytestmark = pytest.mark.hostile

CASES = cases()
SERVICE = "/inference.GRPCInferenceService/"


@pytest.mark.parametrize("name", CASES)
def test_hostile_message_is_rejected(patient: Patient, name: str) -> None:
    """The status is one of the client, and the text has the reason."""
    code, details = patient.call(CASES[name])
    assert code in CLIENTS_FAULT, (code, details)
    check_text(details)


METHODS = ("ModelReady", "ModelMetadata", "ModelConfig", "RepositoryIndex", "ServerLive")
GARBAGE = {
    "ones": b"\xff" * 100,
    "cut": b"\x0a\x05ab",
    "groups": b"\x9b\x06" * 100_000,
    "not_utf8": b"\x0a\x02\xff\xfe",
    "control": b"\x0a\x02a\n",
    "long": b"\x0a\xac\x02" + b"n" * 300,
    "unknown": b"\x0a\x06nobody",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", GARBAGE)
def test_hostile_small_messages_are_rejected(patient: Patient, method: str, name: str) -> None:
    """Health, metadata and index are as strict; an unknown name may be valid."""
    code, details = patient.call(GARBAGE[name], method=SERVICE + method)
    harmless = name in ("not_utf8", "control", "long", "unknown") and method in (
        "ServerLive",
        "ModelReady",
    )
    assert code in CLIENTS_FAULT or (harmless and code is grpc.StatusCode.OK), (code, details)


PATHS = (
    "/",
    "/x",
    "/x/y",
    "//",
    "/inference.GRPCInferenceService",
    "/inference.GRPCInferenceService/",
    "/inference.GRPCInferenceService/modelinfer",
    "/inference.GRPCInferenceService/ModelInfer/",
    "/inference.GRPCInferenceService/ModelInfer?x=y",
    "/inference.GRPCInferenceService//ModelInfer",
    "/inference.GRPCInferenceService/../ModelInfer",
    "/INFERENCE.GRPCInferenceService/ModelInfer",
    "/inference%2eGRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/" + "x" * 4000,
    "/tensorflow.serving.PredictionService/Unknown",
    "/grpc.health.v1.Health/Nothing",
)


@pytest.mark.parametrize("path", PATHS, ids=[path[:50] for path in PATHS])
@pytest.mark.parametrize("message", [b"", b"\xff" * 64, good_call()], ids=["empty", "ones", "good"])
def test_unknown_methods_are_unimplemented(patient: Patient, path: str, message: bytes) -> None:
    """An unknown method is UNIMPLEMENTED, whatever its message."""
    code, _ = patient.call(message, method=path)
    assert code is grpc.StatusCode.UNIMPLEMENTED


OFF = (
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryRegister",
    "CudaSharedMemoryRegister",
    "TraceSetting",
    "LogSettings",
    "ModelStatistics",
)


@pytest.mark.parametrize("method", OFF)
@pytest.mark.parametrize("message", [b"", b"\xff" * 64, good_call()], ids=["empty", "ones", "good"])
def test_disabled_methods_are_unimplemented(patient: Patient, method: str, message: bytes) -> None:
    """A disabled extension is UNIMPLEMENTED, or its message is rejected before that."""
    code, details = patient.call(message, method=SERVICE + method)
    assert code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)
    check_text(details)


METADATA: dict[str, tuple[tuple[str, str | bytes], ...]] = {
    "secrets": (("authorization", f"Bearer {CANARY}"), ("cookie", CANARY), ("x-api-key", CANARY)),
    "binary": (("x-bin", b"\xff\0\n" * 100),),
    "many": tuple((f"x-{n}", "v") for n in range(60)),
    "same_key": (("x-a", "1"),) * 50,
    "request_id_long": (("x-request-id", "r" * 3000),),
    "traceparent_odd": (("traceparent", "nonsense"),),
    "timeout_in_words": (("x-request-timeout", "soon"),),
    "te": (("te", "gzip"),),
    "content_length": (("content-length", "-1"),),
}


@pytest.mark.parametrize("name", METADATA)
def test_unusual_metadata_is_harmless(patient: Patient, name: str) -> None:
    """Metadata within its limit changes no reply."""
    code, details = patient.call(good_call(), metadata=METADATA[name])
    assert (grpc.StatusCode.OK, "") == (code, details)
    code, _ = patient.call(b"\xff", metadata=METADATA[name])
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_metadata_over_the_limit_is_rejected(patient: Patient) -> None:
    """The call gets RESOURCE_EXHAUSTED, and the connection stays usable."""
    for metadata in ((("x-a", "a" * 9000),), tuple((f"x-{n}", "v" * 40) for n in range(200))):
        code, _ = patient.call(good_call(), metadata=metadata)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_message_over_the_limit_is_rejected(patient: Patient) -> None:
    """The limit holds for compressed and inflated bytes."""
    large = request(tensor(shape=(1 << 20,)), raw=[bytes(4 << 20)])
    for compression in (None, grpc.Compression.Gzip, grpc.Compression.Deflate):
        code, details = patient.call(large, compression=compression)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, details


def test_compression_bomb_is_rejected(patient: Patient) -> None:
    """A message that inflates a thousandfold is rejected."""
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        code, _ = patient.call(bytes(64 << 20), compression=compression)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("timeout", [0.0, 1e-9, -1.0, 1e9])
def test_extreme_deadlines_are_honoured(patient: Patient, timeout: float) -> None:
    """Without time left a call fails at once; a huge timeout is accepted."""
    # grpcio counts in milliseconds, in which "simple" can answer.
    slow = request(tensor(), raw=[(60_000).to_bytes(4, "little")], model="slow")
    code, _ = patient.call(good_call() if timeout > 1 else slow, timeout=timeout)
    expected = grpc.StatusCode.OK if timeout > 1 else grpc.StatusCode.DEADLINE_EXCEEDED
    assert code is expected


def test_deadline_ends_a_running_model(patient: Patient) -> None:
    """A slow model ends at the deadline, from the call or from its timeout parameter."""
    milliseconds = (60_000).to_bytes(4, "little")
    slow = request(tensor(), raw=[milliseconds], model="slow")
    assert patient.call(slow, timeout=0.2)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    limited = request(
        tensor(),
        raw=[milliseconds],
        model="slow",
        parameters={"timeout": pb.InferParameter(int64_param=100_000)},
    )
    assert patient.call(limited)[0] is grpc.StatusCode.DEADLINE_EXCEEDED


def test_cancelled_calls_hold_no_slot(patient: Patient) -> None:
    """A hundred calls, cancelled at different moments, hold no slot afterwards."""
    slow = request(tensor(), raw=[(60_000).to_bytes(4, "little")], model="slow")
    infer = patient.channel.unary_unary(INFER)
    for number in range(100):
        call = infer.future(slow, timeout=30)
        if number % 2:
            with pytest.raises(grpc.FutureTimeoutError):
                call.result(timeout=number / 10_000)
        call.cancel()
        assert call.code() is grpc.StatusCode.CANCELLED
    fast = request(tensor(), raw=[bytes(4)], model="slow")
    assert patient.call(fast)[0] is grpc.StatusCode.OK


def test_surplus_messages_of_a_unary_call_are_not_run(patient: Patient) -> None:
    """The call succeeds or is rejected as an error of the client."""
    stream = patient.channel.stream_unary(INFER)
    try:
        stream(iter([good_call()] * 50), timeout=30)
        code = grpc.StatusCode.OK
    except grpc.RpcError as error:
        code = error.code()
    assert code in CLIENTS_FAULT | {grpc.StatusCode.OK}


def test_unary_call_without_a_message_is_rejected(patient: Patient) -> None:
    """A call that ends before its message is rejected at once."""
    stream = patient.channel.stream_unary(INFER)
    with pytest.raises(grpc.RpcError) as caught:
        stream(iter([]), timeout=30)
    assert caught.value.code() in CLIENTS_FAULT


def test_failing_model_is_a_server_error(patient: Patient) -> None:
    """The counter-example: a server error has its own status, without internals."""
    code, details = patient.call(request(tensor(), raw=[bytes(4)], model="fail"))
    assert code not in CLIENTS_FAULT | {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN}
    check_text(details)


@pytest.mark.parametrize("name", [*CASES, *GARBAGE])
def test_hostile_message_keeps_the_stream_usable(patient: Patient, name: str) -> None:
    """It gets a message with an error, and the stream's next request succeeds."""
    hostile = CASES.get(name) or GARBAGE[name]
    stream = patient.channel.stream_stream(SERVICE + "ModelStreamInfer")
    responses = [
        pb.ModelStreamInferResponse.FromString(response)
        for response in stream(iter([hostile, good_call()]), timeout=10)
    ]
    refused, good = responses
    assert refused.error_message
    check_text(refused.error_message)
    assert "" == good.error_message
    assert 2 == len(good.infer_response.outputs)
