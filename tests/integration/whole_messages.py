"""Messages with members that the common form lacks, and servers that record what reaches them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import aiohttp
import grpc
from aiohttp import web
from google.protobuf import text_format
from google.protobuf.message import Message
from multidict import CIMultiDict
from yarl import URL

from gateway.api.protocol import StreamBinding
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.graphpipe import flatbuffer_writer
from gateway.protocols.grps.brpc.framing import frame_bytes, split_frame
from gateway.registry import protocol
from gateway.schema import (
    grps_pb2,
    seldon_pb2,
    tensorflow_messages_pb2,
    tensorflow_serving_pb2,
    torchserve_inference_pb2,
)
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.schema.baidu_std_pb2 import RpcMeta
from gateway.wire.stream import Frame
from tests.cases.graphpipe_http import METADATA_REQUEST
from tests.cases.graphpipe_oracle import (
    PlainMetadata,
    PlainRequest,
    PlainTensor,
    build_metadata,
    build_request,
    build_response,
)

JSON = "application/json"
FLOATS = b"\0\0\x80\x3f\0\0\0\x40"
_TORCHSERVE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
_TRTIS = "/nvidia.inferenceserver.GRPCService/"
_TFS = "/tensorflow.serving.PredictionService/"
_SSE = "text/event-stream; own=1"
# Comments, halves of a character, other line ends, no index, members of its own, and an event of no
# text.
_EVENT = b'data: {"id":"own","error":null,"choices":[{"text":"\\ud83d","own":1}]}\n\n'
_EVENTS = (
    b": ping\n\n" + _EVENT + b": ping 2\r\n: own\r\n\r\n"
    b'event: own\r\nid: 7\r\ndata: {"choices":[{"text":"\\ude00","finish_reason":"own"}]}\r\n\r\n'
    b'data: {"own":[1.50]}\r\rdata: [DONE]'
)
_OPENAI_FORMS = {"input": "text", "model": "m"}


class Sent(NamedTuple):
    """One message of a client, or what a server received: method, path, body, headers it needs."""

    method: str
    path: str
    body: bytes
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class Answer(NamedTuple):
    """One response of a server, or what a client received; its metadata are `headers`, too."""

    status: int
    body: bytes
    kind: str = JSON
    headers: tuple[tuple[str, Any], ...] = ()


def post(path: str, body: bytes, kind: str = JSON) -> Sent:
    """Return a request with a body."""
    return Sent("POST", path, body, kind)


@dataclass(frozen=True)
class Way:
    """A protocol over a carrier.

    Attributes:
        url: The scheme of an upstream, and its options.
        listener: Options of the listener.
        messages: What clients send; the gateway reads only some of them as tensors.
        answers: What the server replies, by a part of the path or of the body; "" is the default.
        read: Which of *messages* another kind of target can answer too.
        rebuilt: Which of *messages* a route rebuilds that changes the model.
        at_server: What the server receives instead of a message with another path.
    """

    url: str
    messages: Mapping[str, Sent]
    answers: Mapping[bytes, Answer]
    listener: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    rebuilt: tuple[str, ...] = ()
    at_server: Mapping[str, str] = field(default_factory=dict)
    schema: type[Message] | None = None
    renamed: Callable[[bytes, str], bytes] = lambda body, _name: body

    @property
    def carrier(self) -> str:
        """Its carrier: "http", "grpc", or the name of a byte stream."""
        return self.url.partition("+")[2]


def _predict(**fields: Any) -> bytes:
    found = tensorflow_serving_pb2.PredictRequest()
    found.model_spec.name = "m"
    for key, value in fields.items():
        setattr(found.model_spec, key, value)
    tensor = found.inputs["x"]
    tensor.dtype = tensorflow_messages_pb2.DT_FLOAT
    tensor.tensor_shape.dim.add(size=2)
    tensor.float_val.extend([1.0, 2.0])
    # A field that the gateway's schema lacks.
    return bytes(found.SerializeToString()) + b"\x32\x03own"


def _examples(kind: Any) -> bytes:
    found = kind()
    found.model_spec.name = "m"
    found.model_spec.signature_name = "own"
    example = found.input.example_list.examples.add()
    example.features.feature["a"].float_list.value.append(1.0)
    return bytes(found.SerializeToString())


def _prediction() -> bytes:
    found = tensorflow_serving_pb2.PredictResponse()
    found.model_spec.name = "m"
    found.model_spec.signature_name = "own"
    found.outputs["y"].dtype = tensorflow_messages_pb2.DT_FLOAT
    found.outputs["y"].tensor_shape.dim.add(size=1)
    found.outputs["y"].float_val.append(3.0)
    return bytes(found.SerializeToString())


def _classified() -> bytes:
    found = tensorflow_serving_pb2.ClassificationResponse()
    found.result.classifications.add().classes.add(label="one", score=0.5)
    found.model_spec.name = "m"
    return bytes(found.SerializeToString())


def _metadata(*, is_answer: bool) -> bytes:
    if not is_answer:
        question = tensorflow_serving_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        question.model_spec.name = "m"
        question.model_spec.version_label = "stable"
        return bytes(question.SerializeToString())
    found = tensorflow_serving_pb2.GetModelMetadataResponse()
    found.model_spec.name = "m"
    found.metadata["signature_def"].type_url = "type.googleapis.com/tensorflow.serving.Own"
    found.metadata["signature_def"].value = b"\x0a\x03abc"
    return bytes(found.SerializeToString())


def _status(*, is_answer: bool) -> bytes:
    if not is_answer:
        question = tensorflow_serving_pb2.GetModelStatusRequest()
        question.model_spec.name = "m"
        return bytes(question.SerializeToString())
    found = tensorflow_serving_pb2.GetModelStatusResponse()
    found.model_version_status.add(version=3, state=50)
    return bytes(found.SerializeToString())


def _torchserve(value: bytes = b"\x00\x01") -> bytes:
    found = torchserve_inference_pb2.PredictionsRequest(model_name="m", input={"own": value})
    return bytes(found.SerializeToString())


def _seldon(*, is_answer: bool) -> bytes:
    found = seldon_pb2.SeldonMessage()
    found.meta.tags["own"].struct_value["a"] = 1
    found.meta.routing["r"] = 2
    if is_answer:
        found.jsonData.struct_value["b"] = "c"
    else:
        found.jsonData.list_value.append(1)
    return bytes(found.SerializeToString())


def _trtis_header() -> pb.InferRequestHeader:
    header = pb.InferRequestHeader(id=7, batch_size=1)
    header.input.add(name="x", dims=[2], batch_byte_size=8)
    header.output.add(name="y")
    return header


def _trtis_reply() -> pb.InferResponseHeader:
    header = pb.InferResponseHeader(model_name="m", model_version=3, batch_size=1, id=7)
    header.output.add(name="y", data_type=pb.TYPE_FP32).raw.CopyFrom(
        pb.InferResponseHeader.Output.Raw(dims=[1], batch_byte_size=4)
    )
    return header


_TRTIS_STATUS = pb.RequestStatus(code=pb.SUCCESS, server_id="own", request_id=4711)
_TRTIS_FAILURE = pb.RequestStatus(code=pb.INVALID_ARG, msg="refused", server_id="own")
_TRTIS_MODEL = 'id: "own" version: "1.9" model_status { key: "m" value { config { name: "m" } } }'
_TRTIS_LINE = text_format.MessageToString(_trtis_reply(), as_one_line=True)


def _trtis(text: str = "", path: str = "/api/infer/m?format=binary", body: bytes = FLOATS) -> Sent:
    header = text or text_format.MessageToString(_trtis_header(), as_one_line=True)
    kind = "application/octet-stream"
    return Sent("POST", path, body, kind, (("nv-inferrequest", header),))


def _trtis_answer(status: pb.RequestStatus, *more: tuple[str, str], http: int = 200) -> Answer:
    line = text_format.MessageToString(status, as_one_line=True)
    body = b"\0\0\x40\x40" + _trtis_reply().SerializeToString() if http == 200 else b""
    return Answer(http, body, "application/octet-stream", (*more, ("nv-status", line)))


TFS_MESSAGES = {
    "members of its own": post(
        "/v1/models/m:predict", b'{"instances": [[1.0, 2.50]], "own": {"a": [1, {"b": null}]}}'
    ),
    "type of curl": post(
        "/v1/models/m:predict",
        b'{"instances": [1.0], "own": 1}',
        "application/x-www-form-urlencoded",
    ),
    "redirected": post("/v1/models/m:predict", b'{"instances": ["redirected"]}'),
    "columns": post("/v1/models/m:predict", b'{"inputs":{"x":[1.0],"y":[[2]]} , "own": 1}'),
    "signature": post(
        "/v1/models/m:predict", b'{"signature_name":"predict_images","instances":[{"x":"a"}]}'
    ),
    "version": post("/v1/models/m/versions/3:predict", b'{"instances": [1.0]}'),
    "label": post("/v1/models/m/labels/stable:predict", b'{"instances": [1.0]}'),
    "ragged": post("/v1/models/m:predict", b'{"instances": [[1.0], [1.0, 2.0]]}'),
    "classify": post("/v1/models/m:classify", b'{"examples": [{"a": 1.0}], "own": 1}'),
    "regress": post("/v1/models/m:regress", b'{"examples": [{"a": [1.0, 2.0]}]}'),
    "error": post("/v1/models/m:predict", b'{"instances": ["refused"]}'),
    "metadata": Sent("GET", "/v1/models/m/metadata", b""),
    "metadata of a label": Sent("GET", "/v1/models/m/labels/stable/metadata", b""),
    "status": Sent("GET", "/v1/models/m", b""),
    "status of a version": Sent("GET", "/v1/models/m/versions/3", b""),
}
WAYS: dict[str, Way] = {
    "tfs.http": Way(
        "tfs+http",
        TFS_MESSAGES,
        {
            b"": Answer(
                200, b'{ "predictions": [1.0, "own"], "own": [] }', headers=(("x-own", "y"),)
            ),
            b"refused": Answer(400, b'{ "error": "refused", "own": 1 }'),
            b"redirected": Answer(307, b"", "", (("location", "/other"),)),
            b"classify": Answer(200, b'{"results": [[["a", 0.5]]]}'),
            b"metadata": Answer(
                200, b'{"model_spec":{"name":"m"},"metadata":{"signature_def":{"a":1,"b":2}}}'
            ),
            b"GET": Answer(200, b'{"model_version_status":[{"version":"1","state":"END"}]}'),
        },
    ),
    "tfs.http kserve": Way(
        "tfs+http",
        {
            "members of its own": post(
                "/v1/models/m:predict", b'{"instances": [{"a": 1}, {"b": [2]}], "own": 1}'
            ),
            "parameters": post("/v1/models/m:predict", b'{"inputs": "text", "parameters": {}}'),
            "explain": post("/v1/models/m:explain", b'{"instances": [[1]]}'),
            "bytes": post("/v1/models/m:predict", b"\xff\xd8\0", "image/jpeg"),
            "empty reply": post("/v1/models/m:predict", b'{"instances": ["nothing"]}'),
            "ready": Sent("GET", "/v1/models/m", b""),
        },
        {
            b"": Answer(200, b'{"predictions": {"own": 1}, "own": 2}'),
            b"nothing": Answer(204, b"", ""),
            b"\xff\xd8": Answer(200, b"own text", "text/plain"),
            b"GET": Answer(200, b'{"name":"m","ready":true,"own":1}'),
        },
        {"dialect": "kserve"},
        {"dialect": "kserve"},
    ),
    "tfs.grpc": Way(
        "tfs+grpc",
        {
            "default": post(f"{_TFS}Predict", _predict()),
            "signature": post(f"{_TFS}Predict", _predict(signature_name="own")),
            "label": post(f"{_TFS}Predict", _predict(version_label="stable")),
            "classify": post(
                f"{_TFS}Classify", _examples(tensorflow_serving_pb2.ClassificationRequest)
            ),
            "regress": post(f"{_TFS}Regress", _examples(tensorflow_serving_pb2.RegressionRequest)),
            "metadata": post(f"{_TFS}GetModelMetadata", _metadata(is_answer=False)),
            "status": post(
                "/tensorflow.serving.ModelService/GetModelStatus", _status(is_answer=False)
            ),
        },
        {
            b"": Answer(0, _prediction(), headers=(("x-own", "y"), ("x-own-bin", b"\0\xff"))),
            b"Classify": Answer(0, _classified()),
            b"Regress": Answer(
                9,
                b"signature own is none of regress",
                headers=(("grpc-status-details-bin", b"\x08\x09\x12\x03own"), ("x-own", "y")),
            ),
            b"GetModelMetadata": Answer(0, _metadata(is_answer=True)),
            b"GetModelStatus": Answer(0, _status(is_answer=True)),
        },
        schema=tensorflow_serving_pb2.PredictRequest,
    ),
    "torchserve.http": Way(
        "torchserve+http",
        {
            "json": post("/predictions/m", b'{"data": [{"a": 1}], "own": null}'),
            "version": post("/predictions/m/2.1", b"[1]"),
            "text": post("/predictions/m", b"some text", "text/plain"),
            "image": post("/predictions/m", b"\xff\xd8\x00", "image/jpeg"),
            "form": post(
                "/predictions/m",
                b'--b\r\nContent-Disposition: form-data; name="data"; filename="a.bin"\r\n'
                b"Content-Type: application/x-own\r\n\r\n\x00\x01\r\n--b--\r\n",
                "multipart/form-data; boundary=b",
            ),
            "explanation": post("/explanations/m", b"[1]"),
            "error": post("/predictions/m", b'{"data": "refused"}'),
            "redirected": post("/predictions/m", b'["redirected"]'),
            "description": Sent("OPTIONS", "/predictions/m", b""),
        },
        {
            b"": Answer(200, b'{"own": ["a", {"b": 1}]}', headers=(("x-own", "y"),)),
            b"refused": Answer(
                500, b'{ "code": 500, "type": "InternalServerException", "message": "refused" }'
            ),
            b"redirected": Answer(307, b"", "", (("location", "/other"),)),
            b"OPTIONS": Answer(200, b'{ "openapi": "3.0.1", "own": {"/predictions/m": 1} }'),
        },
        rebuilt=("description",),
    ),
    "torchserve.grpc": Way(
        "torchserve+grpc",
        {
            "bytes": post(f"{_TORCHSERVE}Predictions", _torchserve()),
            "stream": post(f"{_TORCHSERVE}StreamPredictions", _torchserve()),
            "failing stream": post(f"{_TORCHSERVE}StreamPredictions", _torchserve(b"failing")),
        },
        {b"": Answer(0, b"\x0a\x02\x00\xff"), b"failing": Answer(13, b"failing")},
        schema=torchserve_inference_pb2.PredictionsRequest,
    ),
    "mlflow.http": Way(
        "mlflow+http",
        {
            "inputs": post("/invocations", b'{"inputs": [[1.0, 2.0]], "params": {"a": [1]}}'),
            "split": post(
                "/invocations",
                b'{"dataframe_split": {"columns": ["a", "b"], "data": [[1, "x"], [null, "y"]]}}',
            ),
            "records": post(
                "/invocations", b'{"dataframe_records": [{"a": {"b": 1}}, {"a": [1, 2], "c": 3}]}'
            ),
            "instances": post("/invocations", b'{"instances": [{"a": "x"}, {"b": 1}]}'),
            "mixed": post("/invocations", b'{"inputs": [{"a": 1, "b": 0.5}]}'),
            "messages": post("/invocations", b'{"messages": [{"role": "user", "content": "hi"}]}'),
            "nan": post("/invocations", b'{"inputs": [NaN, 1e400]}'),
            "csv": post("/invocations", b"a,b\n1,\n,x\n", "text/csv"),
            "lines": post("/invocations", b'{"own": 1}\n[2]\n', "application/jsonlines"),
            "parquet": post("/invocations", b"PAR1\xff\0", "application/vnd.apache.parquet"),
            "error": post("/invocations", b'{"inputs": ["refused"]}'),
            "accepted": post("/invocations", b'{"inputs": ["accepted"]}'),
            "redirected": post("/invocations", b'{"inputs": ["redirected"]}'),
        },
        {
            b"": Answer(200, b'{"predictions": [{"own": "a"}, 1]}'),
            b"accepted": Answer(202, b"own text", "text/plain; charset=utf-8"),
            b"redirected": Answer(307, b"", "", (("location", "/other"),)),
            b"refused": Answer(400, b'{"error_code": "BAD_REQUEST", "message": "refused", "x": 1}'),
        },
    ),
    "seldon.http": Way(
        "seldon+http",
        {
            "json": post("/api/v1.0/predictions", b'{"jsonData": {"own": [1]}}'),
            "routing": post(
                "/api/v1.0/predictions",
                b'{"data":{"ndarray":[["a",1]]},"meta":{"routing":{"r":1},"tags":{"t":[1]}}}',
            ),
            "form": post(
                "/predict",
                b"own=1&json=%7B%22strData%22%3A+1%7D",
                "application/x-www-form-urlencoded",
            ),
            "error": post("/api/v1.0/predictions", b'{"jsonData": "refused"}'),
        },
        {
            b"": Answer(200, b'{"jsonData":{"own":1},"meta":{"metrics":[{"key":"k"}]}}'),
            b"refused": Answer(400, b'{"status":{"code":-1,"info":"refused","status":1}}'),
        },
    ),
    "seldon.grpc": Way(
        "seldon+grpc",
        {"json": post("/seldon.protos.Seldon/Predict", _seldon(is_answer=False))},
        {b"": Answer(0, _seldon(is_answer=True))},
        schema=seldon_pb2.SeldonMessage,
    ),
    "openai.http": Way(
        "openai+http",
        {
            "text": post("/v1/embeddings", b'{"model": "m", "input": "a", "own": {"b": 1}}'),
            "floats": post(
                "/v1/embeddings", b'{"model": "m","input":["a"],"encoding_format":"float"}'
            ),
            "base64": post(
                "/v1/embeddings", b'{"model":"m", "input":["a"],"encoding_format":"base64"}'
            ),
            "no form": post("/v1/embeddings", b'{"input":["a"],"model":"m"}'),
            "error": post("/v1/embeddings", b'{"model": "m", "input": "refused"}'),
            "completion": post("/v1/completions", b'{"model": "m","prompt":"a", "n": 2}'),
            "rerank": post(
                "/v1/rerank", b'{"model":"m", "query":"ranked","documents":["b"], "own": 1}'
            ),
            "chat": post("/v1/chat/completions", b'{"model":"m", "messages":[],"own":{"a":1}}'),
            "chat stream": post("/v1/chat/completions", b'{"stream": true,"model":"m"}'),
            "stream": post("/v1/completions", b'{"model":"m", "prompt":"a","stream": true}'),
            "stream of its own": post(
                "/v1/completions", b'{"prompt":"a","n":2,"own":1,"model":"m","stream":true}'
            ),
            "failing stream": post(
                "/v1/completions", b'{"model":"m","prompt":"failing","stream":true}'
            ),
            "refused stream": post(
                "/v1/completions", b'{"model":"m","prompt":"refused","stream":true}'
            ),
        },
        {
            b"failing": Answer(
                200, _EVENT + b'event: own\ndata: {"error":{"message":"own","x":1}}\n\n', _SSE
            ),
            b"refused": Answer(400, b'{"error":{"message":"refused","type":"own","x":1}}'),
            b'"stream"': Answer(200, _EVENTS, _SSE),
            b"/completions": Answer(
                200,
                b'{"object":"text_completion","choices":[{"index":0,"text":"a"},{"text":"b"}],"own":1}',
            ),
            b"ranked": Answer(200, b'{"results":[{"index":0,"relevance_score":0.5,"own":1}]}'),
            b"": Answer(
                200,
                b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1],'
                b'"own":1}],"model":"m","usage":{"prompt_tokens":1,"total_tokens":1,"own":2}}',
            ),
            b"GET": Answer(200, b'{"object":"list","data":[{"id":"m"},{"id":"other"}]}'),
        },
    ),
}
WAYS |= {
    "trtis.http": Way(
        "trtis+http",
        {
            "default": _trtis(),
            "version": _trtis(path="/api/infer/m/3?format=binary"),
            "text": _trtis(path="/api/infer/m"),
            "spelling": _trtis("id:7,batch_size:0x1 input<name:'x' dims:[2]batch_byte_size:8>"),
            "fields of its own": _trtis(
                'batch_size: 1 input { name: "x" dims: 2 own { a: 1 } } output { name: "y" } '
                "own_kind: OWN"
            ),
            "error": _trtis(body=b"refused\0"),
            "status": Sent("GET", "/api/status/m", b""),
            "status as JSON": Sent("GET", "/api/status/m?format=json", b""),
        },
        {
            b"": _trtis_answer(_TRTIS_STATUS, ("nv-inferresponse", f"{_TRTIS_LINE} own: 1")),
            b"refused": _trtis_answer(
                _TRTIS_FAILURE, ("nv-inferresponse", "id: 7"), ("x-own", "y"), http=400
            ),
            b"GET": Answer(
                200,
                _TRTIS_MODEL.encode(),
                "text/plain",
                (("nv-status", text_format.MessageToString(_TRTIS_STATUS, as_one_line=True)),),
            ),
        },
        rebuilt=("status", "status as JSON"),
    ),
    "trtis.grpc": Way(
        "trtis+grpc",
        {
            "default": post(
                f"{_TRTIS}Infer",
                pb.InferRequest(
                    model_name="m", model_version=-1, meta_data=_trtis_header(), raw_input=[FLOATS]
                ).SerializeToString()
                + b"\x82\x7d\x03own",
            ),
            "version": post(
                f"{_TRTIS}Infer",
                pb.InferRequest(
                    model_name="m", model_version=3, meta_data=_trtis_header(), raw_input=[FLOATS]
                ).SerializeToString(),
            ),
            "error": post(
                f"{_TRTIS}Infer",
                pb.InferRequest(
                    model_name="m",
                    model_version=3,
                    meta_data=_trtis_header(),
                    raw_input=[b"refused\0"],
                ).SerializeToString(),
            ),
            "status": post(f"{_TRTIS}Status", pb.StatusRequest(model_name="m").SerializeToString()),
        },
        {
            b"": Answer(
                0,
                pb.InferResponse(
                    request_status=_TRTIS_STATUS,
                    meta_data=_trtis_reply(),
                    raw_output=[b"\0\0\x40\x40"],
                ).SerializeToString()
                + b"\x82\x7d\x03own",
            ),
            b"refused": Answer(
                0, pb.InferResponse(request_status=_TRTIS_FAILURE).SerializeToString()
            ),
            b"Status": Answer(
                0,
                pb.StatusResponse(
                    request_status=_TRTIS_STATUS,
                    server_status=text_format.Parse(_TRTIS_MODEL, pb.ServerStatus()),
                ).SerializeToString(),
            ),
        },
        rebuilt=("status",),
        schema=pb.InferRequest,
    ),
}
_OWN_REQUEST = PlainRequest(b"\x00own", ("x",), (PlainTensor(10, (2,), FLOATS),), ("y", "y"))
_REPLIED = (PlainTensor(10, (1,), b"\0\0\x40\x40"),)


def _graphpipe(request: PlainRequest | None, path: str = "/graphpipe/m") -> Sent:
    body = METADATA_REQUEST if request is None else build_request(request)
    return post(path, body, "application/octet-stream")


def _graphpipe_answer(body: bytes, status: int = 200) -> Answer:
    return Answer(status, body, "application/octet-stream")


WAYS |= {
    "graphpipe.http": Way(
        "graphpipe+http",
        {
            "config": _graphpipe(_OWN_REQUEST),
            "version": _graphpipe(replace(_OWN_REQUEST, output_names=()), "/graphpipe/m/3"),
            "no names": _graphpipe(replace(_OWN_REQUEST, input_names=(), output_names=())),
            "trailing": post("/graphpipe/m", build_request(_OWN_REQUEST) + b"own", "text/own"),
            "error": _graphpipe(replace(_OWN_REQUEST, config=b"refused")),
            "failure": _graphpipe(replace(_OWN_REQUEST, config=b"failed")),
            "metadata": _graphpipe(None),
        },
        {
            b"": _graphpipe_answer(build_response(_REPLIED * 2) + b"own"),
            b"refused": _graphpipe_answer(build_response((), [(400, "refused")]) + b"own"),
            b"failed": Answer(500, b"failed\n", "text/plain"),
            METADATA_REQUEST: _graphpipe_answer(
                build_metadata(PlainMetadata("own", "1", "own", "own", (), ())) + b"own"
            ),
        },
        rebuilt=("metadata",),
    ),
}
_GRPS = "/grps.protos.v1.GrpsService/Predict"


def _grps(**fields: Any) -> bytes:
    return bytes(grps_pb2.GrpsMessage(**fields).SerializeToString()) + b"\x82\x7d\x03own"


_GRPS_TENSOR = grps_pb2.GenericTensor(
    name="x", dtype=grps_pb2.DT_FLOAT32, shape=[2], flat_float32=[1, 2]
)
_GRPS_PATH = "/grps/v1/infer/predict"
_GRPS_MESSAGES = {
    "text": post(_GRPS_PATH, b'{"model": "m", "str_data": "a", "own": {"b": [1]}}'),
    "array": post(f"{_GRPS_PATH}?return-ndarray=true", b'{"model":"m", "ndarray": [[1.50]]}'),
    "tensor": post(
        _GRPS_PATH,
        b'{"gtensors":{"tensors":[{"dtype":"DT_FLOAT32","shape":[1],"flat_float32":[1.5],"own":1}]},'
        b'"model":"m"}',
    ),
    "raw bytes": post(f"{_GRPS_PATH}?model=m", b"\0binary", "application/octet-stream"),
    "error": post(_GRPS_PATH, b'{"model": "m", "str_data": "refused"}'),
}
_GRPS_MAP = grps_pb2.GenericMapData(s_i32={"a": 1})
WAYS |= {
    "grps.grpc": Way(
        "grps+grpc",
        {
            "text": post(_GRPS, _grps(model="m", str_data="a")),
            "bytes": post(_GRPS, _grps(model="m", bin_data=b"\0own")),
            "map": post(_GRPS, _grps(model="m", gmap=_GRPS_MAP)),
            "tensor": post(
                _GRPS,
                _grps(model="m", gtensors=grps_pb2.GenericTensorData(tensors=[_GRPS_TENSOR])),
            ),
            "error": post(_GRPS, _grps(model="m", str_data="refused")),
        },
        {
            b"": Answer(
                0,
                _grps(
                    status=grps_pb2.Status(code=200, msg="own", status="SUCCESS"),
                    str_data="own text",
                ),
            ),
            b"refused": Answer(
                0, _grps(status=grps_pb2.Status(code=415, msg="refused", status="FAILURE"))
            ),
        },
        schema=grps_pb2.GrpsMessage,
    ),
    "grps.http": Way(
        "grps+http",
        _GRPS_MESSAGES,
        {
            b"": Answer(
                200,
                b'{"status":{"code":200,"msg":"own","status":"SUCCESS"},"str_data":"a","own":[1]}',
            ),
            b"refused": Answer(
                415, b'{"status": {"code": 415, "msg": "refused", "status": "FAILURE"}, "own": 1}'
            ),
            b"binary": Answer(200, b"\0own", "application/octet-stream"),
        },
        rebuilt=tuple(_GRPS_MESSAGES),
    ),
}
_BRPC = "/grps.protos.v1.GrpsBrpcService/Predict"
PLAIN = "0 0"
"""The kind of a message of brpc: how it is compressed, and the bytes of its attachment."""
_FRAMED: Mapping[str, Sent] = {
    key: post("", each.body, "")
    for key, each in WAYS["graphpipe.http"].messages.items()
    if key not in ("failure", "metadata")
}
WAYS |= {
    "grps.brpc": Way(
        "grps+brpc",
        {
            **{
                key: post(_BRPC, each.body, PLAIN)
                for key, each in WAYS["grps.grpc"].messages.items()
            },
            "gzip": post(_BRPC, gzip.compress(_grps(model="m", str_data="a")), "2 0"),
            "attachment": post(_BRPC, _grps(model="m", str_data="a") + b"\0own", "0 4"),
            "code": post(_BRPC, _grps(model="m", str_data="code"), PLAIN),
        },
        {
            **{
                key: answer._replace(kind=PLAIN)
                for key, answer in WAYS["grps.grpc"].answers.items()
            },
            b"code": Answer(2004, b"own code", PLAIN),
            b"\x1f\x8b": Answer(0, gzip.compress(WAYS["grps.grpc"].answers[b""].body), "2 0"),
        },
        schema=grps_pb2.GrpsMessage,
    ),
    "graphpipe.tcp": Way(
        "graphpipe+tcp",
        {**_FRAMED, "metadata": post("", METADATA_REQUEST + b"own ", "")},
        {
            key: answer._replace(kind="")
            for key, answer in WAYS["graphpipe.http"].answers.items()
            if key != b"failed"
        },
        rebuilt=("metadata",),
    ),
}
NOT_WHOLE = (
    "graphpipe.unix",  # as graphpipe.tcp
    "oip.http",
    "oip.grpc",
)
"""Protocols whose messages are always written anew; docs/explanation/concepts.md."""


# Questions of clients, and what the gateway asks to know whether a server is there.
_ABOUT = ("/models/", "/status/")
_PROBE = flatbuffer_writer.METADATA_REQUEST
_PROBES = ("/Health", "/graphpipe")


class RecordingServer:
    """A server of any protocol, with canned responses.

    Attributes:
        seen: The inferences and questions that reached it, without those of the gateway itself.
        address: HOST:PORT.
    """

    def __init__(self, way: Way) -> None:
        self.way = way
        self.seen: list[Sent] = []
        self.address = ""

    def answer(self, sent: Sent) -> Answer:
        """Record a request, and return its response."""
        is_get = sent.method == "GET"
        is_question = sent.method == "OPTIONS"
        is_probe = not sent.body or sent.path.endswith(_PROBES) or sent.body == _PROBE
        if (
            any(part in sent.path.rstrip("/") for part in _ABOUT)
            if is_get
            else not is_probe or is_question
        ):
            self.seen.append(sent)
        text = b" ".join((sent.method.encode(), sent.path.encode(), sent.body))
        keys = [key for key in self.way.answers if key and key in text]
        return self.way.answers[keys[0] if keys else b""]


@asynccontextmanager
async def recording(
    way: Way, kind: type[RecordingServer] | None = None
) -> AsyncIterator[RecordingServer]:
    """Run a recording server of a way."""
    found = (kind or RecordingServer)(way)
    run = {"grpc": _grpc_server, "http": _http_server}.get(way.carrier, _stream_server)
    async with run(found) as address:
        found.address = address
        yield found


@asynccontextmanager
async def _http_server(found: RecordingServer) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.Response:
        own = tuple(
            [(key.lower(), value) for key, value in request.headers.items() if _is_own(key)]
        )
        kind = request.headers.get("content-type", JSON)
        sent = Sent(request.method, request.path_qs, await request.read(), kind, own)
        answer = found.answer(sent)
        headers = [("content-type", answer.kind), *answer.headers]
        return web.Response(status=answer.status, body=answer.body, headers=CIMultiDict(headers))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


class _AnyMethod(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, found: RecordingServer) -> None:
        self._found = found

    def service(self, details: Any) -> Any:
        """Return the handler of any method."""

        async def handle(message: bytes, context: Any) -> bytes:
            answer = self._found.answer(Sent("POST", details.method, message))
            context.set_trailing_metadata(answer.headers)
            if answer.status:
                status = {code.value[0]: code for code in grpc.StatusCode}[answer.status]
                await context.abort(status, answer.body.decode())
            return answer.body

        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield b""
            yield await handle(request, context)

        if "/Stream" in details.method:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(handle)


@asynccontextmanager
async def _grpc_server(found: RecordingServer) -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_AnyMethod(found),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def frame_of(way: Way, message: Sent | Answer, correlation: int | None = None) -> Frame:
    """Return a message of a byte stream as a transport gives it to a codec."""
    if way.carrier != "brpc":
        return Frame((memoryview(message.body),))
    compress, attached = map(int, message.kind.split())
    meta, body = RpcMeta(compress_type=compress, attachment_size=attached), message.body
    if isinstance(message, Sent):
        _, meta.request.service_name, meta.request.method_name = message.path.split("/")
    elif message.status:
        meta.response.error_code, meta.response.error_text, body = (
            message.status,
            body.decode(),
            b"",
        )
    else:
        meta.response.error_code = 0
    payload = b"".join(frame_bytes(meta.SerializeToString(), [body]))
    return Frame((memoryview(payload),), correlation)


def _parsed(way: Way, frame: Frame) -> tuple[RpcMeta, bytes, str]:
    """Return the metadata of a frame of brpc, the bytes behind it, and their kind."""
    if way.carrier != "brpc":
        return RpcMeta(), bytes(frame.view), ""
    meta, rest = split_frame(frame.view)
    return meta, bytes(rest), f"{meta.compress_type} {meta.attachment_size}"


def sent_of(way: Way, frame: Frame) -> Sent:
    """Return a message of a byte stream that a server received."""
    meta, body, kind = _parsed(way, frame)
    request = meta.request
    path = f"/{request.service_name}/{request.method_name}" if kind else ""
    return Sent("POST", path, body, kind)


def _binding(way: Way) -> StreamBinding:
    found = protocol(way.url.partition("+")[0]).stream
    assert found is not None
    return found


class _Connection(asyncio.Protocol):
    """A connection of a byte stream to a recording server."""

    def __init__(self, found: RecordingServer) -> None:
        self._found = found
        self._framer = _binding(found.way).server_framer(DEFAULT_LIMITS)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        way = self._found.way
        for frame in self._framer.receive(data):
            answer = frame_of(way, self._found.answer(sent_of(way, frame)), frame.correlation)
            self._transport.writelines(self._framer.send(answer))


@asynccontextmanager
async def _stream_server(found: RecordingServer) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(found), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        server.close()


def _is_own(name: str) -> bool:
    """Return whether a header is a part of the message of a request."""
    return name.lower().startswith("nv-")


Send = Callable[[str, Sent], Awaitable[Answer]]
_OF_A_HOP = frozenset(
    {"content-type", "content-length", "transfer-encoding", "date", "server", "x-request-id"}
)


@asynccontextmanager
async def sending(way: Way) -> AsyncIterator[Send]:
    """Yield what sends a message to a server or a gateway, and returns the response."""
    if way.carrier not in ("grpc", "http"):

        async def send_frame(address: str, sent: Sent) -> Answer:
            host, _, port = address.partition(":")
            framer = _binding(way).client_framer(DEFAULT_LIMITS)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.writelines(framer.send(frame_of(way, sent, correlation=7)))
            async with asyncio.timeout(10):
                while not (frames := framer.receive(await reader.read(1 << 16))):
                    pass
            writer.close()
            await writer.wait_closed()
            meta, body, kind = _parsed(way, frames[0])
            code = meta.response.error_code
            return Answer(code, str(meta.response.error_text).encode() if code else body, kind)

        yield send_frame
        return
    if way.carrier == "grpc":
        channels: dict[str, Any] = {}

        async def send(address: str, sent: Sent) -> Answer:
            if address not in channels:
                channels[address] = grpc.aio.insecure_channel(address)
            call, found = channels[address].unary_stream(sent.path)(sent.body), []
            try:
                async with asyncio.timeout(10):
                    async for each in call:
                        found.append(each)  # noqa: PERF401  # an error comes after items
                code = 0
            except grpc.aio.AioRpcError as error:
                found.append((error.details() or "").encode())
                code = error.code().value[0]
            own = [pair for pair in await call.trailing_metadata() if pair[0] not in _OF_A_HOP]
            return Answer(code, b"\n".join(found), headers=tuple(sorted(own)))

        try:
            yield send
        finally:
            for channel in channels.values():
                await channel.close()
        return
    async with aiohttp.ClientSession() as session:

        async def send_http(address: str, sent: Sent) -> Answer:
            headers = [("content-type", sent.kind)] if sent.body else []
            url = URL(f"http://{address}{sent.path}", encoded=True)
            exchange = session.request(
                sent.method,
                url,
                data=sent.body or None,
                headers=[*headers, *sent.headers],
                allow_redirects=False,
            )
            async with exchange as response:
                own = [
                    (key.lower(), value)
                    for key, value in response.headers.items()
                    if key.lower() not in _OF_A_HOP
                ]
                kind = response.headers.get("content-type", "")
                return Answer(response.status, await response.read(), kind, tuple(own))

        yield send_http


async def send(way: Way, address: str, sent: Sent) -> Answer:
    """Send one message to a server or a gateway, and return the response."""
    async with sending(way) as found:
        return await found(address, sent)
