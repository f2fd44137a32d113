"""Requests that no server should see, as one table. Each of them gets an error from the gateway.

`test_shield_suite` sends them through gateways of five configurations, one after the other.
"""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from http.client import HTTPException
from typing import Any

import grpc

from gateway.schema import open_inference_pb2 as pb
from tests.interop import cancelling as cancel_client
from tests.interop.sacrifice import INFER, channel, infer_method, post, stream_method

TIMEOUT_S = 10.0
NO_ANSWER = "no answer"

Reply = tuple[str, str]
"""Status or code, and the text of the response."""

Send = Callable[[str, str], Reply]
"""Sends a request, given "host:port" for HTTP and for gRPC."""


@dataclass(frozen=True)
class Model:
    """The model to which requests go, which returns its one input, INPUT0, as OUTPUT0."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def path(self) -> str:
        """Path of inferences."""
        return f"/v2/models/{self.name}/infer"


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: What it tries.
        send: Sends it.
        answers: Beginnings of what is right; () for any error of HTTP or gRPC.
        names: Whether the request itself has names that no response may give away.
    """

    name: str
    send: Send
    answers: tuple[str, ...] = ()
    names: bool = False

    def problem(self, reply: Reply) -> str:
        """Return what is wrong with a reply; "" if it is right."""
        status = reply[0]
        if status == NO_ANSWER:
            return NO_ANSWER
        if self.answers:
            right = status.startswith(self.answers)
        else:
            right = status[0] == "4" or status[:3] in {"501", "503"} or status[0] in _REFUSALS
            right = right and status not in {"OK", "UNKNOWN", "INTERNAL"}
        return "" if right else f"{status}: {reply[1][:200]}"


_ANY_ERROR = ("INTERNAL", "INVALID_ARGUMENT", "UNKNOWN", "STREAM_ERROR")
"""The code of a model's own error depends on the carrier to the server."""

_REFUSALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # codes of gRPC are words


# -- ways to send


def http(path: str, body: bytes, *headers: tuple[str, str], timeout_s: float = TIMEOUT_S) -> Send:
    """Return a function that POSTs *body*."""

    def send(http_address: str, _grpc_address: str) -> Reply:
        fields = {"Content-Type": "application/json", **dict(headers)}
        try:
            status, text = post(http_address, path, body, timeout_s, fields)
        except (OSError, HTTPException) as error:
            return NO_ANSWER, repr(error)
        return str(status), text.decode("utf-8", "replace")

    return send


def raw(*pieces: bytes, times: int = 1) -> Send:
    """Return a function that sends raw bytes, the last piece *times* times; it reads the status."""

    def send(http_address: str, _grpc_address: str) -> Reply:
        host, _, port = http_address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            try:
                for piece in pieces[:-1]:
                    connection.sendall(piece)
                for _ in range(times):
                    connection.sendall(pieces[-1])
            except OSError:
                pass  # it was answered before it was read whole
            try:
                found = connection.recv(4096)
            except OSError as error:
                return NO_ANSWER, repr(error)
        words = found.split(b" ", 2)
        return (words[1].decode(), found.decode("latin-1")) if words[1:] else (NO_ANSWER, "closed")

    return send


def unary(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return a function that sends *request* as a unary call."""

    def send(_http_address: str, grpc_address: str) -> Reply:
        with channel(grpc_address) as opened:
            try:
                infer_method(opened)(request, timeout=TIMEOUT_S, metadata=metadata)
            except grpc.RpcError as error:
                return _code_of(error)
        return "OK", ""

    return send


def streamed(request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> Send:
    """Return a function that sends *request* on a stream; an error item counts as one of the call."""

    def send(_http_address: str, grpc_address: str) -> Reply:
        with channel(grpc_address) as opened:
            call = stream_method(opened)(iter([request]), timeout=TIMEOUT_S, metadata=metadata)
            try:
                errors = [answer.error_message for answer in call if answer.error_message]
            except grpc.RpcError as error:
                return _code_of(error)
        return ("STREAM_ERROR", errors[0]) if errors else ("OK", "")

    return send


def packed(message: bytes, path: str = INFER, **options: Any) -> Send:
    """Return a function that sends the bytes of a message as a unary call."""

    def send(_http_address: str, grpc_address: str) -> Reply:
        with channel(grpc_address) as opened:
            method = opened.unary_unary(path)
            try:
                method(message, timeout=TIMEOUT_S, **options)
            except grpc.RpcError as error:
                return _code_of(error)
        return "OK", ""

    return send


def _code_of(error: grpc.RpcError) -> Reply:
    assert isinstance(error, grpc.Call)
    return str(error.code().name), str(error.details())


def leaving(body: bytes, path: str, count: int) -> Send:
    """Return a function that starts requests, and leaves within each body or before the response."""

    def send(http_address: str, _grpc_address: str) -> Reply:
        host, _, port = http_address.rpartition(":")
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for number in range(count):
            with closing(socket.create_connection((host, int(port)), timeout=TIMEOUT_S)) as client:
                client.sendall(head + body[: len(body) // (1 + number % 2)])
        return "OK", ""

    return send


def cancelling(request: pb.ModelInferRequest, count: int, timeout_s: float) -> Send:
    """Return a function that lets the deadlines of calls pass; 0 cancels them."""

    def send(_http_address: str, grpc_address: str) -> Reply:
        command = [sys.executable, "-m", cancel_client.__name__]
        command += [grpc_address, str(count), str(timeout_s)]
        done = subprocess.run(
            command, input=request.SerializeToString(), capture_output=True, timeout=60, check=False
        )
        return ("OK", "") if not done.returncode else (NO_ANSWER, done.stderr.decode())

    return send


# -- messages


def tensor(model: Model, **changes: Any) -> dict[str, Any]:
    """Return an input as JSON, right but for *changes*."""
    data = [1] * 4
    return {
        "name": "INPUT0",
        "datatype": model.datatype,
        "shape": list(model.shape),
        "data": data,
    } | changes


def document(*inputs: Any, **members: Any) -> bytes:
    """Return a request as JSON."""
    return json.dumps({"inputs": list(inputs), **members}).encode()


def message(model: Model, /, **changes: Any) -> pb.ModelInferRequest:
    """Return a request of gRPC, right but for the *changes* of its input."""
    data = changes.pop("raw", bytes(16))
    request = pb.ModelInferRequest(model_name=changes.pop("model", model.name))
    values = {"name": "INPUT0", "datatype": model.datatype, "shape": model.shape} | changes
    request.inputs.add(**values)
    if data is not None:
        request.raw_input_contents.append(data)
    return request


def binary(model: Model, size: object, data: bytes, **changes: Any) -> Send:
    """Return a function that POSTs one binary input with a declared size of *size* bytes."""
    wrong = tensor(model, parameters={"binary_data_size": size}, **changes)
    del wrong["data"]
    head = document(wrong)
    return http(model.path, head + data, ("Inference-Header-Content-Length", str(len(head))))


NESTED = b"[" * 300_000 + b"]" * 300_000


@cache
def _bomb(kind: str) -> bytes:
    """Return 256 MiB of spaces, compressed."""
    if kind == "gzip":
        return gzip.compress(b" " * (256 << 20), 1)
    return zlib.compress(b" " * (256 << 20), 1)


def any_server(model: Model) -> Iterator[Case]:
    """Yield requests that hurt servers of every kind."""
    path, right = model.path, document(tensor(model))
    for size in (300_000, 100_000, 70):
        body = b'{"inputs":' + b"[" * size + b"]" * size + b"}"
        yield Case(f"nested_{size}", http(path, body))
    yield Case("nested_parameters", http(path, b'{"parameters":{"a":' * 1000))
    yield Case("nested_bare", http(path, NESTED))
    chunks = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    yield Case("many_chunks", raw(chunks, b"1\r\nx\r\n" * 10_000, times=100), ("413",))
    yield Case("infinite_quality", http(path, right, ("Accept-Encoding", "gzip;q=1e400")), ("200",))
    for name, shape in {
        "2_62": [2**62, 4],
        "2_63": [2**63 - 1],
        "2_40": [2**40],
        "wraps": [2**32, 2**32],
        "rank": [1] * 1000,
        "negative": [-1, 4],
        "hundreds": [250_000_000],
        "fraction": [1.5],
        "beyond": [2**64],
    }.items():
        yield Case(f"shape_{name}_json", http(path, document(tensor(model, shape=shape))))
        if name not in {"fraction", "beyond"}:
            yield Case(f"shape_{name}_grpc", unary(message(model, shape=shape)))
    text = tensor(model, datatype="BYTES", shape=[1, 1_500_000_000], data=["a"])
    yield Case("texts_that_do_not_come", http(path, document(text)))
    for coding in ("gzip", "deflate"):
        bomb = _bomb(coding)
        yield Case(f"{coding}_bomb", http(path, bomb, ("Content-Encoding", coding)))
    bomb_message = bytes(64 << 20)
    compressed = {"compression": grpc.Compression.Gzip}
    yield Case("grpc_bomb", packed(bomb_message, **compressed))
    yield Case("unknown_coding", http(path, right, ("Content-Encoding", "zstd")))
    yield Case("inputs_json", http(path, b'{"inputs":[' + b",".join([b"{}"] * 150_000) + b"]}"))
    yield Case("inputs_grpc", packed(b"\x0a\x01x" + b"\x2a\x00" * 500_000))
    outputs = [{"name": "OUTPUT0"}] * 200_000
    yield Case("outputs_json", http(path, document(tensor(model), outputs=outputs)))
    yield Case("outputs_grpc", packed(b"\x0a\x01x" + b"\x32\x00" * 200_000))
    members = b",".join(b'"k%d":1' % number for number in range(200_000))
    yield Case("members", http(path, b'{"inputs":[],' + members + b"}"))
    for announced in (-16, 2**63, 2**64, "16", 15, 17, True):
        yield Case(f"binary_size_{announced}", binary(model, announced, bytes(16)))
    pair = [
        tensor(model, name=f"INPUT{n}", parameters={"binary_data_size": 16 - 32 * n})
        for n in (0, 1)
    ]
    head = document(*pair)
    length = ("Inference-Header-Content-Length", str(len(head)))
    yield Case("binary_there_and_back", http(path, head + bytes(16), length))
    for wrong in ("-1", "99999999999999999999", "0x10", "1000000"):
        yield Case(f"header_length_{wrong}", http(path, right, (length[0], wrong)))
    yield Case("number_of_digits", http(path, right.replace(b"[1,", b"[" + b"1" * 100_000 + b",")))
    yield Case(
        "number_1e400", http(path, right.replace(b"[1,", b"[1e400,").replace(b"[1, ", b"[1e400, "))
    )
    yield Case(
        "text_for_numbers", http(path, document(tensor(model, datatype="BYTES", data=["a"] * 4)))
    )
    yield Case(
        "text_for_numbers_grpc", unary(message(model, datatype="BYTES", raw=b"\1\0\0\0a" * 4))
    )
    yield Case("other_datatype", unary(message(model, datatype="FP64", raw=bytes(32))))
    yield Case("no_datatype", unary(message(model, datatype="NONE")))
    yield Case("unnamed", http(path, document(tensor(model, name=""))))
    yield Case("other_name", http(path, document(tensor(model, name="NOPE"))))
    yield Case("twice", http(path, document(tensor(model), tensor(model))))
    yield Case("nul_in_a_name", http(path, document(tensor(model, name="IN\0PUT"))))
    yield Case("long_name", http(path, document(tensor(model, name="x" * 100_000))))
    yield Case("bad_utf8", http(path, right.replace(b"INPUT0", b"INPUT\xff")))
    yield Case("too_few", unary(message(model, raw=bytes(8))))
    yield Case("too_much", unary(message(model, raw=bytes(24))))
    yield Case("without_data", unary(message(model, raw=None)))
    yield Case("not_a_message", packed(b"\xff" * 64))
    yield Case("unknown_method", packed(b"", "/inference.GRPCInferenceService/Nope"))
    for name in ("nope", "..", ".", "a/b", "m$(id)", "x" * 300, "\u00e9"):
        request = message(model, model=name)
        yield Case(f"model_{name[:8]}", unary(request))
        yield Case(f"stream_{name[:8]}", streamed(request))
    for target in ("/v2/models/%2e%2e/infer", "/v2/models/a%2fb/infer", "/v2/models/m%00/infer"):
        yield Case(f"path_{target[11:17]}", http(target, right))
    two = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{{}}"
    both = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    folded = f"POST {path} HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n"
    for name, head_text in {"two_lengths": two, "both_lengths": both, "folded": folded}.items():
        yield Case(name, raw(head_text.encode()), ("400",))
    yield Case("long_head", raw(b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: ", b"x" * 10_000, times=20))
    for method in ("TRACE", "CONNECT"):
        yield Case(method.lower(), raw(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode()))
    yield Case("leaving", leaving(right, path, 100), ("OK",))
    for name, timeout_s in {"cancelled": 0.0, "deadlines": 0.001}.items():
        yield Case(name, cancelling(message(model), 200, timeout_s), ("OK",))
    for size in (20, 300):
        wide = tensor(model, shape=[size * 10_000], data=[0.12345678] * (size * 10_000))
        if size == 300:
            yield Case("json_of_40_mb", http(path, document(*[wide])))


def python_servers(model: Model) -> Iterator[Case]:
    """Yield requests that hurt servers of one event loop."""
    for case in any_server(model):
        # Those that name no platform may accept inputs that they do not declare.
        yield replace(case, answers=_EITHER) if case.name in _OTHER_DATATYPES else case
    count = 15_000_000
    yield Case(
        "numbers", binary(model, 4 * count, bytes(4 * count), shape=[1, count][-len(model.shape) :])
    )
    empty = tensor(model, datatype="BYTES", shape=[1_000_000], data=[""] * 1_000_000)
    yield Case("empty_texts", http(model.path, document(empty)), _EITHER)
    wide = tensor(model, datatype="BYTES", shape=[1000], data=["a"] * 999 + ["b" * 400_000])
    yield Case("wide_text", http(model.path, document(wide)), _EITHER)
    for number in range(5):
        yield Case(f"invented_{number}", http(f"/v2/models/invented-{number}/infer", b"{}"), ("4",))
    rows = json.dumps({"instances": [[1.0] * 16] * 20_000}).encode()
    yield Case("rows_of_v1", http("/v1/models/rows:predict", rows))
    for path in ("/metrics", "/openapi.json", "/docs"):
        yield Case(f"get_{path[1:]}", raw(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))


_EITHER = ("200", "4", "OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
_OTHER_DATATYPES = {
    *("text_for_numbers", "text_for_numbers_grpc", "other_datatype"),
    *("shape_negative_json", "shape_negative_grpc"),  # numpy finds out the one axis that is -1
}

MANAGEMENT = (
    "/v2/repository/index",
    "/v2/repository/models/fail_always/load",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/register",
    "/v2/trace/setting",
    "/v2/logging",
)


def triton(model: Model, own_segment: str, marker: str) -> Iterator[Case]:
    """Yield requests that hurt Triton.

    Args:
        model: As for the others.
        own_segment: The name of a segment of Triton's.
        marker: The file that commands would make.
    """
    yield from any_server(model)
    for path in MANAGEMENT:
        yield Case(f"nested_{path[4:16]}", http(path, NESTED))
    for path in ("generate", "generate_stream"):
        yield Case(f"nested_{path}", http(f"/v2/models/{model.name}/{path}", NESTED))
    yield from _classes()
    yield from _sequences()
    yield from _regions(model, own_segment)
    yield from _loads(marker)
    large = message(model, shape=(1, 2_621_440), raw=bytes(10 << 20))
    yield Case("segment_named", unary(large), ("I", "U", "R"))
    yield Case("segment_named_stream", streamed(large))
    wrong = message(model, model="fail_always", datatype="INT32", shape=(1,), raw=bytes(4))
    yield Case(
        "error_as_status",
        streamed(wrong, ("triton_grpc_error", "true")),
        _ANY_ERROR,
    )
    trace = json.dumps({"trace_file": marker, "trace_level": ["TIMESTAMPS"]}).encode()
    yield Case("trace_file", http("/v2/trace/setting", trace), ("4", "501", "200"))
    yield Case(
        "priority_text", http(model.path, document(tensor(model), parameters={"priority": "x"}))
    )


def _classes() -> Iterator[Case]:
    for name, datatype, data in (("bytes", "BYTES", b"\1\0\0\0a"), ("bool", "BOOL", b"\1")):
        shape = (1, 1) if name == "bytes" else (1,)
        request = pb.ModelInferRequest(model_name=f"identity_{name}")
        request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
        request.raw_input_contents.append(data)
        request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 1
        yield Case(f"classes_{name}", unary(request))
        yield Case(f"classes_{name}_stream", streamed(request))
    tensor_document = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    for count in (2**31, -1, 0, 4_000_000, "x", 1.5):
        output = {"name": "OUTPUT0", "parameters": {"classification": count}}
        body = document(tensor_document, outputs=[output])
        answers = ("200",) if count == 0 else ()  # none
        yield Case(f"classes_{count}", http("/v2/models/identity_fp32/infer", body), answers)


def _sequences() -> Iterator[Case]:
    wrong: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("sequence_number", ("x" * 20, "7", -1, 2**64, 1.5, [])),
        ("sequence_text", (7, 2**63)),
    )
    for model, ids in wrong:
        tensor_document = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
        for number in ids:
            flags = {"sequence_id": number, "sequence_start": True}
            body = document(tensor_document, parameters=flags)
            yield Case(f"{model}_{str(number)[:5]}", http(f"/v2/models/{model}/infer", body))
    for model, key, value in (
        ("sequence_number", "string_param", "x" * 20),
        ("sequence_text", "int64_param", 7),
    ):
        request = pb.ModelInferRequest(model_name=model)
        request.inputs.add(name="INPUT", datatype="INT32", shape=(1, 1))
        request.raw_input_contents.append(bytes(4))
        setattr(request.parameters["sequence_id"], key, value)
        request.parameters["sequence_start"].bool_param = True
        yield Case(f"{model}_grpc", unary(request))
        yield Case(f"{model}_stream", streamed(request))


def _regions(model: Model, own: str) -> Iterator[Case]:
    for number, key in enumerate(
        (f"/{own}", own, f"//{own}", f"/./{own}", "/shield-none", "/a/../b")
    ):
        for offset, size in ((0, 64), (2**62, 2**62)):
            body = json.dumps({"key": key, "offset": offset, "byte_size": size}).encode()
            path = "/v2/systemsharedmemory/region/own/register"
            yield Case(f"register_{number}_{offset}", http(path, body), names=True)
    for offset, size in ((0, 16), (2**63, 2**63), (-1, 16), (0, 2**64)):
        place = {
            "shared_memory_region": "own",
            "shared_memory_offset": offset,
            "shared_memory_byte_size": size,
        }
        wrong = tensor(model, parameters=place)
        del wrong["data"]
        yield Case(f"in_region_{offset}_{size}", http(model.path, document(wrong)))


def _loads(marker: str) -> Iterator[Case]:
    config: dict[str, Any] = {
        "backend": "python",
        "default_model_filename": f"m$(touch {marker}).py",
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    parameters: Sequence[dict[str, Any]] = (
        {"config": json.dumps(config)},
        {"config": json.dumps({"parameters": {"EXECUTION_ENV_PATH": {"string_value": marker}}})},
        {"config": "{"},
        {"file:1/model.py": "aW1wb3J0IG9z"},
        {"file:../../x": "aW1wb3J0IG9z", "config": "{}"},
        {"unknown": 1},
    )
    for number, body_parameters in enumerate(parameters):
        body = json.dumps({"parameters": body_parameters}).encode()
        for repository in ("repository", "%72epository"):
            path = f"/v2/{repository}/models/fail_always/load"
            answers = ("4", "50") if number == 5 else ()  # an unknown parameter is Triton's
            yield Case(f"load_{number}_{repository}", http(path, body), answers, names=True)
    for name in ("m$(id)", "%2e%2e", "a%2fb", "nope"):
        path = f"/v2/repository/models/{name}/load"
        yield Case(f"load_{name}", http(path, b"{}"), ("4", "50"))
    request = pb.RepositoryModelLoadRequest(model_name="fail_always")
    request.parameters["config"].string_param = json.dumps(config)
    method = "/inference.GRPCInferenceService/RepositoryModelLoad"
    yield Case("load_grpc", packed(request.SerializeToString(), method))
