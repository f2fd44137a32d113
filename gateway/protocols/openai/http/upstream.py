"""The side of a client: requests to servers of OpenAI's form, and their responses.

Source: docs/protocols/openai.md, "10. Servers".
"""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import JsonParameter, ModelRef, Origin
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    Overloaded,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry, TensorMetadata
from gateway.ir.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.ir.text_tasks import (
    FINISH_REASON,
    OF_SERVER,
    PROMPT_TOKENS,
    Embed,
    Generate,
    Rerank,
    TextServer,
    TextTask,
)
from gateway.ir.work import OBJECT_BYTE, charge
from gateway.protocols.openai.errors import JSON, OK
from gateway.protocols.openai.http.form import NAME
from gateway.protocols.openai.options import COMPLETIONS, EMBEDDINGS, NONE, RERANK, OpenAiOptions
from gateway.wire.errors import error_class_of_http, is_error_status, read_error_text
from gateway.wire.event_stream import EventSplitter, is_event_stream
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json_values import read_value
from gateway.wire.metadata import http_headers

_HEADERS: Final = Headers(JSON)
_TASKS: Final[Mapping[str, type[TextTask]]] = {
    EMBEDDINGS: Embed,
    RERANK: Rerank,
    COMPLETIONS: Generate,
}
_MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    EMBEDDINGS: frozenset({"dimensions", "input_type", "user"}),
    RERANK: frozenset({"top_n", "user", "max_tokens_per_doc"}),
    COMPLETIONS: frozenset(
        {
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "seed",
            "frequency_penalty",
            "presence_penalty",
            "stop",
            "echo",
            "user",
        }
    ),
}
_DROPPED: Final = frozenset({"return_documents", PROMPT_TOKENS, FINISH_REASON})
_DONE: Final = b"[DONE]"
_BAD_ARGUMENT: Final = frozenset({400, 413, 422})
_NOT_FOUND, _TOO_MANY, _BACKEND = 404, 429, 424
_SHOWN: Final = 4096
_FLOAT: Final = 4


def metadata_of(model: ModelRef, options: OpenAiOptions) -> ModelMetadata:
    """Return the metadata of a model: its server tells none."""
    if options.task == EMBEDDINGS:
        inputs: tuple[TensorMetadata, ...] = (TensorMetadata("text", Datatype.BYTES, (-1,)),)
        output = TensorMetadata("embedding", Datatype.FP32, (-1, -1))
    elif options.task == RERANK:
        inputs = (
            TensorMetadata("query", Datatype.BYTES, (1,)),
            TensorMetadata("document", Datatype.BYTES, (-1,)),
        )
        output = TensorMetadata("score", Datatype.FP32, (-1,))
    else:
        inputs = (TensorMetadata("prompt", Datatype.BYTES, (-1,)),)
        output = TensorMetadata("completion", Datatype.BYTES, (-1,))
    return ModelMetadata(
        name=model.name,
        platform="openai",
        inputs=inputs,
        outputs=(output,),
        max_batch_size=options.max_inputs if options.task == EMBEDDINGS else 0,
        decoupled=options.task == COMPLETIONS,
        declarations={OF_SERVER: TextServer(_TASKS[options.task])},
    )


def question_path(call: Call[Any], options: OpenAiOptions) -> str:
    """Return the path of a request without a body."""
    if isinstance(call, ServerLiveRequest | ServerReadyRequest) and options.probe == "health":
        return "/health"
    return f"{options.base}/models"


def encode_inference(
    call: InferRequest | StreamInferRequest, options: OpenAiOptions
) -> HttpRequest:
    """Write an inference of the task of the upstream.

    Raises:
        InvalidRequest: An input or a parameter is not that of the task.
        Unsupported: The call has something that the form does not carry.
    """
    request = inference_of(call)
    assert request is not None  # noqa: S101  # both kinds have one
    if call.model is None or not call.model.name:
        raise Unsupported("an inference names no model: OpenAI's form needs one")
    _check_plain(request)
    document: dict[str, Any] = {"model": call.model.name}
    if options.task == EMBEDDINGS:
        document["input"] = _input(request)
        document["encoding_format"] = "base64"
    elif options.task == RERANK:
        document |= _query_and_documents(request)
    else:
        (prompts,) = _texts(request, 1)
        document["prompt"] = prompts[0] if len(prompts) == 1 else prompts
        if isinstance(call, StreamInferRequest):
            document["stream"] = True
    document |= _members(request, options.task)
    headers = Headers((*JSON, *http_headers(call.context)))
    path = f"{options.base}/{options.task}"
    return HttpRequest("POST", path, "", headers, (orjson.dumps(document),), call.context.deadline)


def decode_question(
    call: Call[Any], wire: HttpResponse, options: OpenAiOptions, limits: MessageLimits
) -> Any:
    """Read the response to a call that is no inference.

    Raises:
        GatewayError: The server has no such model, or sends something else.
    """
    if isinstance(call, ServerLiveRequest | ServerReadyRequest):
        return wire.status == OK or options.probe == NONE
    names = _model_names(call, wire, limits)
    model = call.model or ModelRef("")
    if isinstance(call, RepositoryIndexRequest):
        return tuple([RepositoryEntry(name, "", ModelState.READY) for name in names or ()])
    is_there = names is None or model.name in names
    if isinstance(call, ModelReadyRequest):
        return is_there
    assert isinstance(call, ModelMetadataRequest)  # noqa: S101  # the codec has no others
    if not is_there:
        raise ModelNotFound(f"model {str(model)!r} is not in the list of its server", model=model)
    return metadata_of(model, options)


def decode_inference(
    call: InferRequest, wire: HttpResponse, options: OpenAiOptions, limits: MessageLimits
) -> InferResponse:
    """Read the response to an inference.

    Raises:
        GatewayError: The error of the server, with the response as origin.
        MalformedMessage: The response cannot be used.
    """
    document = _document(call, wire, limits)
    if options.task == EMBEDDINGS:
        output = _embeddings(document, _count(call))
    elif options.task == RERANK:
        output = _scores(document, len(_query_and_documents(call)["documents"]))
    else:
        output = _choices(document, _count(call))
    parameters: dict[str, Any] = {}
    usage = document.get("usage")
    tokens = usage.get(PROMPT_TOKENS) if type(usage) is dict else None
    if type(tokens) is int and tokens >= 0:
        parameters[PROMPT_TOKENS] = tokens
    if options.task == COMPLETIONS:
        choices = sorted(document["choices"], key=lambda each: each["index"])
        reasons = [str(each.get("finish_reason") or "stop") for each in choices]
        parameters[FINISH_REASON] = ",".join(reasons)
    return InferResponse(
        model=call.model or ModelRef(""),
        outputs=(_named(call, output, options),),
        id=call.id,
        parameters=parameters,
    )


def decode_event(
    call: StreamInferRequest, wire: HttpResponse, options: OpenAiOptions, limits: MessageLimits
) -> InferResponse:
    """Read one event of a stream.

    Raises:
        GatewayError: The event is an error of the server, or cannot be used.
    """
    model = call.model or ModelRef("")
    if wire.status == OK and bytes(wire.view) == _DONE:
        return InferResponse(model=model, outputs=(), id=call.request.id)
    document = _document(call, wire, limits)
    if "error" in document:
        raise error_of(call, HttpResponse(500, wire.headers, wire.body), limits)
    choices = document.get("choices")
    if type(choices) is not list or not all(type(each) is dict for each in choices):
        raise MalformedMessage("an event of the stream has no list of choices")
    text = "".join(str(each.get("text") or "") for each in choices)
    parameters: dict[str, Any] = {}
    reasons = [each["finish_reason"] for each in choices if each.get("finish_reason")]
    if reasons:
        parameters[FINISH_REASON] = str(reasons[0])
    outputs: tuple[Tensor, ...] = ()
    if text:
        tensor = items_tensor("", (1,), [text.encode("utf-8", "replace")])
        outputs = (_named(call.request, tensor, options),)
    return InferResponse(
        model=model, outputs=outputs, id=call.request.id, parameters=parameters, is_final=False
    )


class StreamSplitter:
    """Cuts a stream into events, of which the last one must be the end.

    Args:
        limits: The largest event.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._events = EventSplitter(limits)
        self._is_stream = False
        self._has_ended = False

    def receive(self, part: HttpResponse, /) -> Sequence[HttpResponse]:
        """Return the events that *part* completes. Raises TooLarge."""
        self._is_stream = self._is_stream or (part.status == OK and is_event_stream(part))
        found = self._events.receive(part)
        for event in found:
            data = bytes(event.view)
            self._has_ended = self._has_ended or data == _DONE or b'"error"' in data
        return found

    def end(self) -> Sequence[HttpResponse]:
        """Return a response that is no stream. Raises MalformedMessage for one without an end."""
        rest = self._events.end()
        if self._is_stream and not self._has_ended:
            raise MalformedMessage("the stream ended without [DONE]")
        return rest


def error_of(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> GatewayError:
    """Return the error in a response of another status than 200, with it as origin."""
    text = _error_text(wire, limits) or f"HTTP status {wire.status} without a text"
    if not is_error_status(wire.status):
        return UpstreamProtocolError(
            f"upstream responded with HTTP status {wire.status}: {text}", model=call.model
        )
    name = "" if call.model is None else call.model.name
    is_about_model = bool(name) and name in text and "model" in text.lower()
    kind: type[GatewayError]
    if wire.status == _NOT_FOUND:
        kind = ModelNotFound if is_about_model else UpstreamError
    elif wire.status in _BAD_ARGUMENT:
        kind = ModelNotFound if is_about_model and _is_unknown(text) else InvalidRequest
    elif wire.status == _TOO_MANY:
        kind = Overloaded
    elif wire.status == _BACKEND:
        kind = UpstreamError
    else:
        kind = error_class_of_http(wire.status)
    return kind(text, model=call.model, origin=Origin(NAME, wire))


_UNKNOWN_WORDS: Final = ("not found", "does not exist", "unknown model", "not deployed", "notfound")


def _is_unknown(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _UNKNOWN_WORDS)


def _error_text(wire: HttpResponse, limits: MessageLimits) -> str:
    plain = read_error_text(wire.view, _SHOWN)
    try:
        document = orjson.loads(wire.view[:_SHOWN])
    except orjson.JSONDecodeError:
        return plain
    if type(document) is not dict:
        return plain
    for key in ("error", "message", "detail"):
        found = document.get(key)
        if type(found) is dict:
            found = found.get("message")
        if type(found) is list and found and type(found[0]) is dict:
            found = found[0].get("msg")
        if type(found) is str and found:
            return read_error_text(
                memoryview(found.encode("utf-8", "replace")), limits.error_text_bytes
            )
    return plain


def _document(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> dict[str, Any]:
    if wire.status != OK:
        raise error_of(call, wire, limits)
    view = wire.view
    charge(view.nbytes * OBJECT_BYTE)
    try:
        found = orjson.loads(view)
    except orjson.JSONDecodeError as error:
        raise MalformedMessage(f"the response is not JSON: {error}") from error
    if type(found) is not dict:
        raise MalformedMessage("the response is not a JSON object")
    return found


def _model_names(
    call: Call[Any], wire: HttpResponse, limits: MessageLimits
) -> frozenset[str] | None:
    """Return the models in a list; None where the server has no list."""
    if wire.status in (_NOT_FOUND, 405, 501):
        return None
    if wire.status != OK:
        raise error_of(call, wire, limits)
    document = read_value(wire.view, "the list of models", limits)
    data = document.get("data") if type(document) is dict else document
    if type(data) is not list:
        raise MalformedMessage("the list of models has no 'data'")
    return frozenset(
        [each["id"] for each in data if type(each) is dict and type(each.get("id")) is str]
    )


def _check_plain(request: InferRequest) -> None:
    if request.sequence is not None:
        raise Unsupported("OpenAI's form has no sequences", model=request.model)
    for output in request.outputs:
        if output.classes or output.shared is not None:
            raise Unsupported(
                f"output {output.name!r} as classes or in shared memory: OpenAI's form has neither",
                model=request.model,
            )


def _input(request: InferRequest) -> list[Any]:
    inputs = request.inputs
    if len(inputs) == 2 and inputs[0].datatype is Datatype.INT64:  # noqa: PLR2004  # ids and counts
        ends = np.cumsum(as_numpy(inputs[1]))[:-1]
        return [row.tolist() for row in np.split(as_numpy(inputs[0]), ends)]
    (texts,) = _texts(request, 1)
    return texts


def _query_and_documents(request: InferRequest) -> dict[str, Any]:
    names = [tensor.name for tensor in request.inputs]
    found = _texts(request, 2)
    query, documents = reversed(found) if "query" in names[1:] else found
    if len(query) != 1:
        raise InvalidRequest(f"the query has {len(query)} texts; expected one", model=request.model)
    return {"query": query[0], "documents": documents}


def _texts(request: InferRequest, count: int) -> list[list[str]]:
    """Return the texts of each input."""
    inputs = request.inputs
    if len(inputs) != count or any(each.datatype is not Datatype.BYTES for each in inputs):
        raise InvalidRequest(
            f"the request has {len(inputs)} inputs; expected {count} of BYTES", model=request.model
        )
    found = []
    for tensor in inputs:
        items = as_items(tensor)
        charge(len(items))
        try:
            found.append([str(item, "utf-8") for item in items])
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"input {tensor.name!r} has an element that is not UTF-8; expected texts",
                model=request.model,
            ) from error
        if not items:
            raise InvalidRequest(
                f"input {tensor.name!r} is empty; expected at least one text", model=request.model
            )
    return found


def _members(request: InferRequest, task: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in request.parameters.items():
        if name in _DROPPED:
            continue
        if name not in _MEMBERS[task]:
            known = ", ".join(sorted(_MEMBERS[task]))
            raise InvalidRequest(
                f"parameter {name!r} is no member of a request for {task}; expected one of {known}",
                model=request.model,
            )
        found[name] = json.loads(value) if isinstance(value, JsonParameter) else value
    return found


def _count(call: InferRequest) -> int:
    """Return the number of rows of a request."""
    tensor = call.inputs[-1]
    shape = tensor.shape or ()
    return int(np.prod(shape)) if shape else 1


def _in_order(entries: Any, count: int, what: str) -> list[dict[str, Any]]:
    """Return *count* entries by their index, each of them once.

    Raises:
        MalformedMessage: One is missing, repeated or surplus.
    """
    if type(entries) is not list or not all(type(each) is dict for each in entries):
        raise MalformedMessage(f"the response has no list of {what}")
    if len(entries) != count:
        raise MalformedMessage(
            f"the response has {len(entries)} {what}, the request {count} inputs"
        )
    found: list[dict[str, Any] | None] = [None] * count
    for each in entries:
        index = each.get("index")
        if type(index) is not int or not 0 <= index < count or found[index] is not None:
            raise MalformedMessage(
                f"the {what} of the response have the index {str(index)[:32]} twice, or beyond "
                f"{count - 1}"
            )
        found[index] = each
    return [each for each in found if each is not None]


def _embeddings(document: dict[str, Any], count: int) -> Tensor:
    rows = [
        _floats(each.get("embedding"))
        for each in _in_order(document.get("data"), count, "embeddings")
    ]
    if len({len(row) for row in rows}) > 1:
        raise MalformedMessage("the embeddings of the response have different sizes")
    return array_tensor("", np.stack(rows))


def _floats(value: Any) -> Any:
    """Return one embedding as FP32, of base64 or of a list of numbers."""
    if type(value) is str:
        try:
            data = b64decode(value, validate=True)
        except (Base64Error, ValueError) as error:
            raise MalformedMessage("an embedding of the response is no base64") from error
        if len(data) % _FLOAT or not data:
            raise MalformedMessage(f"an embedding has {len(data)} bytes, which are no FP32")
        return np.frombuffer(data, "<f4")
    if type(value) is not list or not value or not set(map(type, value)) <= {int, float}:
        raise MalformedMessage("an embedding of the response is neither base64 nor numbers")
    charge(len(value) / 8)
    with np.errstate(over="ignore"):
        return np.array(value, np.float64).astype(np.float32)


def _scores(document: dict[str, Any], count: int) -> Tensor:
    """Return the scores in the order of the documents; NaN for those that `top_n` leaves out."""
    results = document.get("results")
    if type(results) is not list or len(results) > count:
        raise MalformedMessage("the response has no list of results, or too many")
    scores = np.full(count, np.nan, np.float32)
    seen: set[int] = set()
    for each in results:
        index = each.get("index") if type(each) is dict else None
        score = each.get("relevance_score", each.get("score")) if type(each) is dict else None
        if type(index) is not int or not 0 <= index < count or index in seen:
            raise MalformedMessage(
                f"the results have the index {str(index)[:32]} twice, or beyond {count - 1}"
            )
        if type(score) not in (int, float):
            raise MalformedMessage(f"the result of index {index} has no score")
        seen.add(index)
        scores[index] = score
    return array_tensor("", scores)


def _choices(document: dict[str, Any], count: int) -> Tensor:
    entries = _in_order(document.get("choices"), count, "choices")
    texts = [each.get("text") for each in entries]
    if not all(type(text) is str for text in texts):
        raise MalformedMessage("a choice of the response has no text")
    return items_tensor("", (count,), [str(text).encode("utf-8", "replace") for text in texts])


def _named(call: InferRequest, tensor: Tensor, options: OpenAiOptions) -> Tensor:
    """Return an output with the name that the request has, or else that of the metadata."""
    if call.outputs:
        return tensor.renamed(call.outputs[0].name)
    return tensor.renamed(metadata_of(ModelRef(""), options).outputs[0].name)
