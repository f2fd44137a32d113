"""What each protocol cannot carry, in one place: an entry for each way a codec is spoken.

A way is a codec with options of a listener and of an upstream.  All that an entry does not take
away must arrive as it was sent; what it takes away is not drawn.  A codec of the registry without
an entry fails a test that says so: add an entry here, and all suites take it in.

Source: the pages in `docs/protocols/`, section "What is refused, and why" of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import ErrorCode
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, ServerMetadata
from gateway.ir.tensors.datatypes import Datatype
from tests.cases.oip_options import EVERYTHING
from tests.properties.extensions import EXTENSIONS
from tests.properties.registered import REGISTERED, Registered

INT64_MAX, UINT64_MAX = (1 << 63) - 1, (1 << 64) - 1
EVERY = frozenset(Datatype)
SCALARS: frozenset[type] = frozenset({bool, int, float, str})
NOTHING: frozenset[type] = frozenset()
TEXT, NUMBER = frozenset({str}), frozenset({int})
QUESTIONS: frozenset[type[Call[Any]]] = frozenset(
    {
        InferRequest,
        ModelMetadataRequest,
        ModelReadyRequest,
        RepositoryIndexRequest,
        ServerLiveRequest,
        ServerMetadataRequest,
        ServerReadyRequest,
    }
)


def same(value: Any) -> Any:
    """Take nothing away."""
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Carries:
    """What one way of speaking a protocol carries.

    Attributes:
        codec: As registered.
        way: Tells it from other ways of the same codec.
        listener: Options of the side that reads requests.
        upstream: Options of the side that writes them.
        model: The only model, where messages name none.
        questions: Types of its calls.
        datatypes: Of inputs.
        reply_datatypes: Of outputs.
        text: BYTES elements must be UTF-8, in requests.
        reply_text: Likewise in replies.
        finite: Floats of requests must be finite.
        reply_finite: Likewise in replies.
        binary: Tensors of requests are views of the message.
        reply_binary: Likewise of replies.
        copied: Datatypes whose tensors are no views all the same.
        least_rank: Of a tensor's shape.
        most_rank: Likewise.
        most_tensors: Of a request, and of a reply.
        plain_models: Names of models need no encoding in a path.
        versions: A request may name a version.
        ids: Types of request ids; numbers are written in decimal.
        needs_id: A request without an id gets one.
        parameters: Types of a request's own parameters.
        tensor_parameters: Of inputs and outputs.
        reply_parameters: Of a reply.
        largest: Of integers in parameters, and of a timeout.
        sequences: Types of sequence ids.
        priority: The largest.
        timeouts: A queue timeout travels.
        answers_model: A reply names its model and version.
        least_outputs: Of a reply.
        asks_by_name: A request for all outputs names each of them.
        selects: A request may name some outputs only.
        ready_only: The index can be limited to ready models.
        index_names: The index has names only.
        as_carried: Removes the parts of a reply that are not carried.
        errors: Codes that arrive as another one; the others arrive as themselves.
        declared: Models have declared metadata: the protocol has no question for them.
        tensors: It carries tensors; otherwise tasks on texts, which have suites of their own.
    """

    codec: str
    way: str = ""
    listener: Mapping[str, Any] = field(default_factory=dict)
    upstream: Mapping[str, Any] = field(default_factory=dict)
    model: ModelRef | None = None
    questions: frozenset[type[Call[Any]]] = QUESTIONS
    datatypes: frozenset[Datatype] = EVERY
    reply_datatypes: frozenset[Datatype] = EVERY
    text: bool = False
    reply_text: bool = False
    finite: bool = False
    reply_finite: bool = False
    binary: bool = True
    reply_binary: bool = True
    copied: frozenset[Datatype] = frozenset()
    least_rank: int = 0
    most_rank: int = 5
    most_tensors: int = 2
    plain_models: bool = False
    versions: bool = True
    ids: frozenset[type] = TEXT
    needs_id: bool = False
    parameters: frozenset[type] = SCALARS
    tensor_parameters: frozenset[type] = SCALARS
    reply_parameters: frozenset[type] = SCALARS
    largest: int = UINT64_MAX
    sequences: frozenset[type] = TEXT | NUMBER
    priority: int = UINT64_MAX
    timeouts: bool = True
    answers_model: bool = True
    least_outputs: int = 0
    asks_by_name: bool = False
    selects: bool = True
    ready_only: bool = True
    index_names: bool = False
    as_carried: Callable[[Any], Any] = same
    errors: Mapping[ErrorCode, ErrorCode] = field(default_factory=dict)
    declared: bool = False
    tensors: bool = True

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.codec}-{self.way}" if self.way else self.codec

    @property
    def registered(self) -> Registered:
        """The codec, with its protocol."""
        return REGISTERED[self.codec]

    def meet(self, other: Carries) -> Carries:
        """Return what both carry, under this one's name."""
        found: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            if item.name in _MEET:
                found[item.name] = _MEET[item.name](
                    getattr(self, item.name), getattr(other, item.name)
                )
        found["as_carried"] = lambda reply: other.as_carried(self.as_carried(reply))
        return Carries(codec=self.codec, way=f"{self.way}+{other.name}", **found)


def _both(one: Any, other: Any) -> Any:
    return one & other


def _either(one: bool, other: bool) -> bool:
    return one or other


_MEET: dict[str, Callable[[Any, Any], Any]] = {
    "model": lambda one, other: one or other,
    **dict.fromkeys(("questions", "datatypes", "reply_datatypes"), _both),
    "ids": lambda one, other: one & other or (NUMBER if one and other else NOTHING),
    **dict.fromkeys(("parameters", "tensor_parameters", "reply_parameters", "sequences"), _both),
    **dict.fromkeys(("text", "reply_text", "finite", "reply_finite", "needs_id"), _either),
    **dict.fromkeys(("index_names", "asks_by_name", "plain_models"), _either),
    **dict.fromkeys(("binary", "reply_binary", "versions", "timeouts", "answers_model"), _both),
    **dict.fromkeys(("ready_only", "selects"), _both),
    **dict.fromkeys(("least_rank", "least_outputs"), max),
    **dict.fromkeys(("largest", "priority", "most_rank", "most_tensors"), min),
}


# Open Inference.

_NOT_JSON = frozenset({Datatype.FP16, Datatype.BF16})
_OIP_HTTP_ERRORS = {
    ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,  # both are 503
    ErrorCode.OVERLOADED: ErrorCode.UNAVAILABLE,
    ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
    ErrorCode.INTERNAL: ErrorCode.UPSTREAM,  # both are 500
    ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,  # the upstream's client is the gateway
}
_OIP_GRPC_ERRORS = {
    ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
    ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,
    ErrorCode.TOO_LARGE: ErrorCode.OVERLOADED,  # both are RESOURCE_EXHAUSTED
    ErrorCode.BAD_UPSTREAM: ErrorCode.UPSTREAM,  # all three are INTERNAL
    ErrorCode.INTERNAL: ErrorCode.UPSTREAM,
    ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,
}


def _oip_as_carried(reply: Any) -> Any:
    """A listener adds the extensions that it serves itself, and a model's defaults."""
    if isinstance(reply, ServerMetadata):
        return ServerMetadata(reply.name, reply.version)
    if isinstance(reply, ModelConfiguration):  # every default is written out
        return reply.document["name"], reply.max_batch_size
    return reply


def _oip_http(dialect: str, **fields: Any) -> Carries:
    return Carries(
        codec="oip.http",
        way=dialect,
        upstream={"dialect": dialect},
        as_carried=_oip_as_carried,
        **{
            "errors": _OIP_HTTP_ERRORS,
            "listener": {**EVERYTHING, "not_ready_status": 503},
            **fields,
        },
    )


def _oip_grpc(dialect: str, **fields: Any) -> Carries:
    return Carries(
        codec="oip.grpc",
        way=dialect,
        listener=EVERYTHING,
        upstream={"dialect": dialect},
        as_carried=_oip_as_carried,
        errors=_OIP_GRPC_ERRORS,
        **{"largest": INT64_MAX, **fields},
    )


_NO_DOUBLES: dict[str, Any] = {
    "parameters": SCALARS - {float},
    "tensor_parameters": SCALARS - {float},
    "datatypes": EVERY - {Datatype.BF16},
    "priority": INT64_MAX,
}
_NO_INDEX = QUESTIONS - {RepositoryIndexRequest}

_OIP = (
    _oip_http("triton", largest=INT64_MAX, priority=INT64_MAX, questions=QUESTIONS | EXTENSIONS),
    _oip_http(
        "gateway",
        questions=QUESTIONS | EXTENSIONS,
        listener={**EVERYTHING, "not_ready_status": 409},
        errors={
            code: neighbour
            for code, neighbour in _OIP_HTTP_ERRORS.items()
            if code is not ErrorCode.NOT_READY
        },
    ),
    # JSON only, both ways: no halves, no NaN, text.  NaN in answers is told in test_http.py.
    _oip_http(
        "mlserver",
        datatypes=EVERY - _NOT_JSON,
        reply_datatypes=EVERY - _NOT_JSON,
        text=True,
        reply_text=True,
        finite=True,
        reply_finite=True,
        binary=False,
        reply_binary=False,
    ),
    _oip_http(
        "kserve", text=True, versions=False, needs_id=True, ready_only=False, index_names=True
    ),
    _oip_http("ovms", ready_only=False, index_names=True),
    _oip_grpc("triton", questions=QUESTIONS | EXTENSIONS),
    _oip_grpc("gateway", questions=QUESTIONS | EXTENSIONS),
    _oip_grpc("mlserver", **_NO_DOUBLES),
    _oip_grpc("kserve", questions=_NO_INDEX, versions=False, needs_id=True, **_NO_DOUBLES),
    _oip_grpc("ovms", questions=_NO_INDEX, **_NO_DOUBLES),
)


# GraphPipe: inputs and their names; outputs by place; nothing that stands beside a tensor.


def _graphpipe_as_carried(reply: Any) -> Any:
    """Take away what its metadata has no field for; `platform` names the server."""
    if isinstance(reply, ModelMetadata):
        return ModelMetadata(name=reply.name, inputs=reply.inputs, outputs=reply.outputs)
    return reply


def _graphpipe(carrier: str, way: str = "", **fields: Any) -> Carries:
    return Carries(
        codec=f"graphpipe.{carrier}",
        way=way,
        # BF16 travels as FP32: `Complete` takes it back, by the model's metadata.
        copied=frozenset({Datatype.BF16}),
        ids=NOTHING,
        parameters=NOTHING,
        tensor_parameters=NOTHING,
        reply_parameters=NOTHING,
        sequences=NOTHING,
        priority=0,
        timeouts=False,
        answers_model=False,
        least_outputs=1,
        asks_by_name=True,
        ready_only=False,
        as_carried=_graphpipe_as_carried,
        errors={
            ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
            ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,
            ErrorCode.INTERNAL: ErrorCode.UPSTREAM,
            ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,
        },
        **fields,
    )


_GRAPHPIPE = (
    _graphpipe(
        "http", questions=frozenset({InferRequest, ModelMetadataRequest, RepositoryIndexRequest})
    ),
    _graphpipe(
        "http",
        "control",
        listener={"errors": "status"},
        upstream={"health": "control"},
        questions=frozenset({InferRequest, ServerLiveRequest, ServerReadyRequest}),
    ),
    _graphpipe(
        "stream",
        listener={"default_model": "m"},
        model=ModelRef("m"),
        questions=frozenset({InferRequest, ModelMetadataRequest}),
    ),
)


# TensorRT v1: numbers for ids and versions, every output named, nothing beside a tensor.  How its
# metadata and versions survive is told in test_trtis.py: its one question is for a status.


def _trtis_as_carried(reply: Any) -> Any:
    """Take away the version of the reply: it is always present, 1 where the reply has none."""
    if isinstance(reply, InferResponse):
        return reply.changed(model=ModelRef(reply.model.name))
    return reply


def _trtis(carrier: str) -> Carries:
    datatypes = EVERY - {Datatype.BF16}
    return Carries(
        codec=f"trtis.{carrier}",
        plain_models=carrier == "http",
        # Older ones have no fields for priority and timeout.
        upstream={"server_version": "1.12.0"},
        questions=frozenset({InferRequest, ServerLiveRequest, ServerReadyRequest}),
        datatypes=datatypes,
        reply_datatypes=datatypes,
        least_rank=1,
        versions=False,
        ids=NUMBER,
        asks_by_name=True,
        parameters=NOTHING,
        tensor_parameters=NOTHING,
        reply_parameters=NOTHING,
        sequences=NUMBER,
        priority=(1 << 32) - 1,
        answers_model=False,
        as_carried=_trtis_as_carried,
        errors={
            **dict.fromkeys(_TRTIS_UNAVAILABLE, ErrorCode.NOT_READY),
            ErrorCode.QUOTA_EXCEEDED: (
                ErrorCode.OVERLOADED if carrier == "grpc" else ErrorCode.NOT_READY
            ),
            ErrorCode.TOO_LARGE: ErrorCode.INVALID_ARGUMENT,
            ErrorCode.BAD_UPSTREAM: ErrorCode.UPSTREAM,  # all three are INTERNAL
            ErrorCode.INTERNAL: ErrorCode.UPSTREAM,
        },
    )


# All are UNAVAILABLE, which of an inference means that the model is not there or not ready.
_TRTIS_UNAVAILABLE = (
    ErrorCode.NOT_FOUND,
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN,
    ErrorCode.OVERLOADED,
    ErrorCode.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED,
)
_TRTIS = (_trtis("http"), _trtis("grpc"))


# grps: tensors and nothing beside them; its metadata is text.  How names, maps, text and bytes
# survive is told in test_grps.py; what goes out wider is another way.


_GRPS_DATATYPES = EVERY - {
    Datatype.BOOL,
    Datatype.UINT16,
    Datatype.UINT32,
    Datatype.UINT64,
    Datatype.BF16,
}


def _grps_as_carried(reply: Any) -> Any:
    """Take away all versions but the last: an entry of metadata has one."""
    if isinstance(reply, ModelMetadata):
        return ModelMetadata(
            name=reply.name,
            versions=reply.versions[-1:],
            platform=reply.platform,
            inputs=reply.inputs,
            outputs=reply.outputs,
        )
    return reply


_GRPS_WIDENED = EVERY - {Datatype.UINT64}  # beyond 2**63 - 1 it has no wider one


def _grps(carrier: str, way: str = "", **fields: Any) -> Carries:
    return Carries(
        codec=f"grps.{carrier}",
        way=way,
        questions=frozenset(
            {InferRequest, ModelMetadataRequest, ServerLiveRequest, ServerReadyRequest}
        ),
        text=True,
        reply_text=True,
        # Only what a field holds in its own width is a view.
        copied=EVERY - {Datatype.FP32, Datatype.FP64},
        versions=False,
        ids=NOTHING,
        parameters=NOTHING,
        tensor_parameters=NOTHING,
        reply_parameters=NOTHING,
        sequences=NOTHING,
        priority=0,
        timeouts=False,
        answers_model=False,
        selects=False,
        as_carried=_grps_as_carried,
        **{"datatypes": _GRPS_DATATYPES, "reply_datatypes": _GRPS_DATATYPES, **fields},
    )


def _grps_widened(carrier: str, **fields: Any) -> Carries:
    return _grps(
        carrier,
        "widened",
        upstream={"widen": True},
        datatypes=_GRPS_WIDENED,
        reply_datatypes=_GRPS_WIDENED,
        **fields,
    )


_GRPS_ERRORS = {
    ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
    ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,  # both are 503
    ErrorCode.INTERNAL: ErrorCode.UPSTREAM,  # both are 500
    ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,
}
_GRPS = (
    # NaN is a word in JSON: its bits are lost.
    _grps_widened(
        "http",
        finite=True,
        reply_finite=True,
        binary=False,
        reply_binary=False,
        errors={**_GRPS_ERRORS, ErrorCode.OVERLOADED: ErrorCode.UNAVAILABLE},
    ),
    _grps("grpc", "plain", errors=_GRPS_ERRORS),
    _grps_widened("grpc", errors=_GRPS_ERRORS),
    _grps_widened("brpc", errors=_GRPS_ERRORS),
)

# TensorFlow Serving: tensors by name, and nothing beside them.  Its metadata is of one version.


def _tfs_as_carried(reply: Any) -> Any:
    """Take away the version of the reply, which is 1 where it has none, and what metadata lack."""
    if isinstance(reply, InferResponse):
        return reply.changed(model=ModelRef(reply.model.name))
    if isinstance(reply, ModelMetadata):
        return ModelMetadata(
            name=reply.name,
            inputs=tuple(sorted(reply.inputs, key=lambda each: each.name)),
            outputs=tuple(sorted(reply.outputs, key=lambda each: each.name)),
        )
    return reply


def _tfs(carrier: str, **fields: Any) -> Carries:
    return Carries(
        codec=f"tfs.{carrier}",
        versions=False,
        ids=NOTHING,
        parameters=NOTHING,
        tensor_parameters=NOTHING,
        reply_parameters=NOTHING,
        sequences=NOTHING,
        priority=0,
        timeouts=False,
        answers_model=False,
        as_carried=_tfs_as_carried,
        **fields,
    )


_TFS_GRPC_ERRORS = {
    ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
    ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,
    ErrorCode.OVERLOADED: ErrorCode.UNAVAILABLE,
    ErrorCode.TOO_LARGE: ErrorCode.OVERLOADED,  # both are RESOURCE_EXHAUSTED
    ErrorCode.BAD_UPSTREAM: ErrorCode.UPSTREAM,  # all three are INTERNAL
    ErrorCode.INTERNAL: ErrorCode.UPSTREAM,
    ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,
}
_TFS = (
    Carries(codec="tfs.http", tensors=False),  # tests/integration/test_tfs_recorded.py
    _tfs(
        "grpc",
        questions=frozenset({InferRequest, ModelMetadataRequest}),
        # Typed fields of replies hold other datatypes as varints.
        copied=EVERY - {Datatype.FP32, Datatype.FP64},
        errors=_TFS_GRPC_ERRORS,
    ),
    _tfs(
        "grpc",
        way="content",
        listener={"tensor_content": True},
        questions=frozenset({InferRequest, ModelMetadataRequest}),
        copied=frozenset({Datatype.BOOL}),
        errors=_TFS_GRPC_ERRORS,
    ),
)

# OpenAI: texts in, numbers or texts out, and no tensors with names: tests/matrix/test_texts.py.

_OPENAI = (Carries(codec="openai.http", tensors=False),)

# MLflow: JSON without datatypes, which only a model's metadata give: tests/unit/protocols/mlflow.

_MLFLOW = (Carries(codec="mlflow.http", tensors=False),)

# Seldon: one array without a name or a datatype: tests/unit/protocols/seldon.

_SELDON = (
    Carries(codec="seldon.http", tensors=False),
    Carries(codec="seldon.grpc", tensors=False),
)

# TorchServe: bytes, which a model's metadata or a declaration make tensors:
# tests/unit/protocols/torchserve.

_TORCHSERVE = tuple(
    Carries(codec=f"torchserve.{carrier}", tensors=False) for carrier in ("http", "grpc")
)

CARRIES: tuple[Carries, ...] = (
    *(*_OIP, *_GRAPHPIPE, *_TRTIS, *_GRPS),
    *(*_TFS, *_OPENAI, *_MLFLOW, *_TORCHSERVE, *_SELDON),
)

# Those of the registry: a codec that is not registered is not tried.
WAYS: tuple[Carries, ...] = tuple(way for way in CARRIES if way.codec in REGISTERED and way.tensors)

# The protocols whose clients send tensors, by name.
OF_TENSORS: tuple[str, ...] = tuple(dict.fromkeys(way.codec.partition(".")[0] for way in WAYS))
