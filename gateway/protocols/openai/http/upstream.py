"""The side of a client: requests to servers of OpenAI's form, and their responses.

Source: docs/protocols/openai.md, "10. Servers".
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from gateway.api.protocol import Handling, named_model
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
)
from gateway.ir.context import JsonParameter, ModelRef, Origin
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    Overloaded,
    UpstreamError,
)
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.ir.text_tasks import (
    COMPLETION_TOKENS,
    FINISH_REASON,
    OF_SERVER,
    PROMPT_TOKENS,
    Embed,
    Generate,
    Rerank,
    TextServer,
    TextTask,
)
from gateway.ir.unread import message_of
from gateway.ir.values.exact_values import base64_bytes
from gateway.ir.values.nearest import loads_to_odd, may_lie_between
from gateway.ir.work import OBJECT_BYTE, charge
from gateway.protocols.openai.errors import JSON, OK
from gateway.protocols.openai.http.form import NAME, TASKS, form_of
from gateway.protocols.openai.options import COMPLETIONS, EMBEDDINGS, NONE, RERANK, OpenAiOptions
from gateway.wire.errors import SUCCESSES, read_error_text, refuses_caller
from gateway.wire.event_stream import Event, EventSplitter, is_event_stream
from gateway.wire.heads.metadata import get_request, http_headers
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json.errors import JsonErrorReader, class_of_status
from gateway.wire.json.values import load_json, read_value, short_document
from gateway.wire.opaque import passed_error, passed_request, passed_response

_TITLE: Final = "OpenAI's form"
_HEADERS: Final = Headers(JSON)
_TASKS: Final[Mapping[str, type[TextTask]]] = {
    EMBEDDINGS: Embed,
    RERANK: Rerank,
    COMPLETIONS: Generate,
}
_MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    EMBEDDINGS: frozenset({"dimensions", "input_type", "user", "encoding_format"}),
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
_DROPPED: Final = frozenset({"return_documents", PROMPT_TOKENS, COMPLETION_TOKENS, FINISH_REASON})
_DONE: Final = b"[DONE]"
_BAD_ARGUMENT: Final = frozenset({400, 413, 422})
_NOT_FOUND, _TOO_MANY, _BACKEND, _INTERNAL = 404, 429, 424, 500
_SHOWN: Final = 4096
_FLOAT: Final = 4
_MODEL: Final = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
_OTHER_SPELLING: Final = b"\\u006"  # how each of the letters of "model" begins, escaped
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")


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


class TextClient:
    """Writes requests to servers of texts, and reads their responses.

    Args:
        limits: The limits of a message.
        options: The options of the upstream.

    Attributes:
        calls: How it handles each kind of call, with no responses to clients.
    """

    def __init__(self, limits: MessageLimits, options: OpenAiOptions) -> None:
        self._limits = limits
        self._options = options
        list_models = partial(get_request, path=f"{options.base}/models")
        probe = partial(get_request, path="/health") if options.probe == "health" else list_models
        health = Handling(probe, self._is_there)
        self.calls: Mapping[type[Call[Any]], Handling] = {
            InferRequest: Handling(
                lambda call: self._request(call, call), self._read_inference, send_on=self._sent
            ),
            StreamInferRequest: Handling(
                lambda call: self._request(call, call.request, stream=True),
                lambda call, wire: decode_event(call, wire, options, limits),
                send_on=self._sent,
            ),
            ServerLiveRequest: health,
            ServerReadyRequest: health,
            RepositoryIndexRequest: Handling(list_models, self._index),
            ModelReadyRequest: Handling(list_models, self._is_listed),
            ModelMetadataRequest: Handling(list_models, self._metadata),
        }

    def _request(self, call: Call[Any], request: InferRequest, **members: Any) -> HttpRequest:
        options = self._options
        document: dict[str, Any] = {"model": named_model(_TITLE, call).name}
        if options.task == EMBEDDINGS:
            document["input"] = _input(request)
            document["encoding_format"] = "float"  # the only form that all servers have
        elif options.task == RERANK:
            document |= _query_and_documents(request)
        else:
            (prompts,) = _texts(request, 1)
            document |= {"prompt": prompts[0] if len(prompts) == 1 else prompts, **members}
        document |= _members(request, options.task)
        headers = Headers((*JSON, *http_headers(call.context)))
        path = f"{options.base}/{options.task}"
        body = (orjson.dumps(document),)
        return HttpRequest("POST", path, "", headers, body, call.context.deadline)

    def _sent(self, call: Call[Any], message: Origin) -> HttpRequest:
        """Return a client's request for any task, with the target's model in its body.

        Raises:
            Unsupported: The call names no model.
        """
        model = named_model(_TITLE, call).name
        path = f"{self._options.base}/{self._task(call)}"
        request = passed_request(call, message, path)
        body, name = bytes(request.view), orjson.dumps(model)
        found = list(_MODEL.finditer(body))
        # Only the object itself has this member, in these letters.
        if len(found) != 1 or body.count(b"{") > 1 or _OTHER_SPELLING in body:
            document = load_json(body, "the body")
            if document.get("model") == model:
                return request
            body = orjson.dumps({**document, "model": model})
        elif found[0][1] == name:
            return request
        else:
            start, end = found[0].span(1)
            body = b"%b%b%b" % (body[:start], name, body[end:])
        headers = request.headers
        return HttpRequest("POST", path, request.query, headers, (body,), request.deadline)

    def pass_on(self, call: Call[Any], reply: Origin) -> HttpResponse:
        """Return a server's response or event, with the model that the client named.

        Another name than the server was asked for is the server's own, such as one with a date.
        """
        response, view = passed_response(Origin(NAME, message_of(reply))), reply.wire.view
        name = "" if call.model is None else call.model.name
        sent = "" if reply.form is None else reply.form.name
        head = bytes(view[:_SHOWN]) + bytes(view[-_SHOWN:])
        if name == sent or orjson.dumps(sent) not in head:
            return response
        try:
            document = load_json(view, "the response")
        except MalformedMessage:
            return response
        if document.get("model") != sent:
            return response
        body = orjson.dumps({**document, "model": name})
        is_event = isinstance(reply.wire, Event)
        parts = (b"data: ", body, b"\n\n") if is_event else (body,)
        return HttpResponse(response.status, response.headers, parts)

    def _is_there(self, call: Call[bool], wire: HttpResponse) -> bool:
        if self._options.probe == NONE:
            return True
        if refuses_caller(wire):
            raise error_of(call, wire, self._limits)
        return wire.status == OK

    def _index(self, call: RepositoryIndexRequest, wire: HttpResponse) -> Any:
        names = _model_names(call, wire, self._limits) or ()
        return tuple([RepositoryEntry(name, "", ModelState.READY) for name in names])

    def _is_listed(self, call: Call[Any], wire: HttpResponse) -> bool:
        names = _model_names(call, wire, self._limits)
        return names is None or (call.model or ModelRef("")).name in names

    def _metadata(self, call: ModelMetadataRequest, wire: HttpResponse) -> ModelMetadata:
        model = call.model or ModelRef("")
        if not self._is_listed(call, wire):
            raise ModelNotFound(
                f"model {str(model)!r} is not in the list of its server", model=model
            )
        return metadata_of(model, self._options)

    def _task(self, call: Call[Any]) -> str:
        """Return the task of a client's own request, or else that of the upstream."""
        form = form_of(call)
        return self._options.task if form is None else TASKS.get(form.kind, self._options.task)

    def _read_inference(self, call: InferRequest, wire: HttpResponse) -> InferResponse:
        options, task = self._options, self._task(call)
        document = _document(call, wire, self._limits)
        if task == EMBEDDINGS:
            output = _numbers(_embeddings, document, wire, _count(call))
        elif task == RERANK:
            count = len(_query_and_documents(call)["documents"])
            output = _numbers(_scores, document, wire, count)
        else:
            output = _choices(document, _count(call))
        parameters = _tokens(document)
        if task == COMPLETIONS:
            choices = _in_order(document["choices"], _count(call), "choices")
            reasons = [str(each.get("finish_reason") or "stop") for each in choices]
            parameters[FINISH_REASON] = ",".join(reasons)
        return InferResponse(
            model=call.model or ModelRef(""),
            outputs=(_named(call, output, options),),
            id=call.id,
            parameters=parameters,
        )


def is_comment(wire: HttpResponse) -> bool:
    """Return whether an event of a stream has no data, such as one that keeps it alive."""
    return isinstance(wire, Event) and not wire.view.nbytes


def _is_done(wire: HttpResponse) -> bool:
    return wire.status == OK and bytes(wire.view).strip() == _DONE


def decode_event(
    call: StreamInferRequest, wire: HttpResponse, options: OpenAiOptions, limits: MessageLimits
) -> InferResponse:
    """Read one event of a stream.

    Raises:
        GatewayError: The event is an error of the server, or cannot be used.
    """
    model = call.model or ModelRef("")
    if is_comment(wire):
        return InferResponse(model=model, outputs=(), id=call.request.id, is_final=False)
    if _is_done(wire):
        return InferResponse(model=model, outputs=(), id=call.request.id)
    document = _document(call, wire, limits)
    if document.get("error") is not None:
        failure = HttpResponse(_INTERNAL, wire.headers, wire.body)
        if isinstance(wire, Event):
            failure = Event(_INTERNAL, wire.headers, wire.body, whole=wire.whole)
        raise error_of(call, failure, limits)
    choices = document.get("choices")
    if type(choices) is not list or not all(type(each) is dict for each in choices):
        raise MalformedMessage("an event of the stream has no list of choices")
    text = "".join(str(each.get("text") or "") for each in choices)
    parameters = _tokens(document)
    reasons = [each["finish_reason"] for each in choices if each.get("finish_reason")]
    if reasons:
        parameters[FINISH_REASON] = str(reasons[0])
    output = _named(call.request, items_tensor("", (1,), [_utf8(text)]), options)
    return InferResponse(
        model=model, outputs=(output,), id=call.request.id, parameters=parameters, is_final=False
    )


def _tokens(document: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of tokens that a server tells."""
    usage = document.get("usage")
    counts = usage if type(usage) is dict else {}
    names = (PROMPT_TOKENS, COMPLETION_TOKENS) if "choices" in document else (PROMPT_TOKENS,)
    found = {name: counts[name] for name in names if type(counts.get(name)) is int}
    return {name: count for name, count in found.items() if count >= 0}


class StreamSplitter:
    """Cuts a stream into events, of which the last one must be an end.

    A character whose halves are in two events is in the second one.

    Args:
        limits: The largest event.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._events = EventSplitter(limits, has_comments=True)
        self._is_stream = False
        self._last = b""
        self._half = ""

    def receive(self, part: HttpResponse, /) -> Sequence[HttpResponse]:
        """Return the events that *part* completes. Raises TooLarge."""
        self._is_stream = self._is_stream or (part.status == OK and is_event_stream(part))
        return [self._whole(event) for event in self._events.receive(part)]

    def end(self) -> Sequence[HttpResponse]:
        """Return what is left: a last event, or a response that is no stream.

        Raises:
            MalformedMessage: The stream has no end.
        """
        rest = [self._whole(event) for event in self._events.end()]
        if self._is_stream and not _is_end(self._last):
            raise MalformedMessage("the stream ended without [DONE]")
        return rest

    def _whole(self, event: HttpResponse) -> HttpResponse:
        """Return an event with the half of a character before it, and without one at its end."""
        if is_comment(event):
            return event
        self._last = data = bytes(event.view)
        if not isinstance(event, Event) or not (self._half or _HALF.search(data)):
            return event
        try:
            document = json.loads(data)
            choice = document["choices"][0]
            text = self._half + (choice["text"] or "")
        except (ValueError, LookupError, TypeError, RecursionError):
            return event  # its reader says what is wrong
        is_cut = "\ud800" <= text[-1:] < "\udc00" and not choice.get("finish_reason")
        self._half = text[-1] if is_cut else ""
        choice["text"] = text[:-1] if is_cut else text
        body = (json.dumps(document).encode(),)
        return Event(event.status, event.headers, body, whole=event.whole)


def _is_end(data: bytes) -> bool:
    """Return whether an event can be the last one: the end, an error, a reason, or the usage."""
    if data.strip() == _DONE:
        return True
    document = short_document(memoryview(data))
    choices = document.get("choices")
    has_reason = type(choices) is list and any(
        type(each) is dict and each.get("finish_reason") for each in choices
    )
    return has_reason or any(document.get(key) is not None for key in ("error", "usage"))


def error_of(call: Call[Any], wire: HttpResponse, limits: MessageLimits) -> GatewayError:
    """Return the error in a response of another status than 200, with it as origin."""
    return _ERRORS.read(call.model, wire, limits, _error_text(wire, limits))


def passed_failure(error: GatewayError, limits: MessageLimits) -> HttpResponse | None:
    """Return the error of a server as the client gets it: a response, or an event of a stream."""
    passed = passed_error(error, NAME, limits)
    wire = None if error.origin is None else error.origin.wire
    if passed is not None and isinstance(wire, Event):
        return passed_response(Origin(NAME, wire.whole))
    return passed


def _class_of(model: ModelRef | None, status: int, kind: str, text: str) -> type[GatewayError]:
    name = "" if model is None else model.name
    is_about_model = bool(name) and name in text and "model" in text.lower()
    if status == _NOT_FOUND:
        return ModelNotFound if is_about_model else UpstreamError
    if status in _BAD_ARGUMENT:
        return ModelNotFound if is_about_model and _is_unknown(text) else InvalidRequest
    if status == _TOO_MANY:
        return Overloaded
    return UpstreamError if status == _BACKEND else class_of_status(model, status, kind, text)


_UNKNOWN_WORDS: Final = ("not found", "does not exist", "unknown model", "not deployed", "notfound")


def _is_unknown(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _UNKNOWN_WORDS)


_ERRORS: Final = JsonErrorReader(
    codec=NAME,
    passes=True,
    no_text="HTTP status {} without a text",
    error_class=_class_of,
    no_error="{}",
)


def _error_text(wire: HttpResponse, limits: MessageLimits) -> str:
    plain = read_error_text(wire.view, _SHOWN)
    document = short_document(wire.view)
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
    if wire.status not in SUCCESSES:
        raise error_of(call, wire, limits)
    view = wire.view
    charge(view.nbytes * OBJECT_BYTE)
    try:
        found = load_json(view, "the response")
    except MalformedMessage as error:
        try:
            found = json.loads(bytes(view))  # which reads halves of characters, and NaN
        except (ValueError, RecursionError):
            raise error from None
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
    """Return *count* entries by their index, each of them once; without one their order tells it.

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
    for at, each in enumerate(entries):
        index = at if each.get("index") is None else each["index"]
        if type(index) is not int or not 0 <= index < count or found[index] is not None:
            raise MalformedMessage(
                f"the {what} of the response have the index {str(index)[:32]} twice, or beyond "
                f"{count - 1}"
            )
        found[index] = each
    return [each for each in found if each is not None]


def _numbers(
    read: Callable[[dict[str, Any], int], npt.NDArray[Any]],
    document: dict[str, Any],
    wire: HttpResponse,
    count: int,
) -> Tensor:
    """Return numbers of a response as FP32, each of them rounded once."""
    found = read(document, count)
    if may_lie_between(found, Datatype.FP32) and found.dtype == np.float64:
        found = read(loads_to_odd(wire.view), count)
    with np.errstate(over="ignore"):
        return array_tensor("", found.astype(np.float32))


def _embeddings(document: dict[str, Any], count: int) -> npt.NDArray[Any]:
    """Return a row for each embedding; of doubles, unless all are base64."""
    rows = [
        _floats(each.get("embedding"))
        for each in _in_order(document.get("data"), count, "embeddings")
    ]
    if len({len(row) for row in rows}) > 1:
        raise MalformedMessage("the embeddings of the response have different sizes")
    return np.stack(rows)


def _floats(value: Any) -> Any:
    """Return one embedding: base64 as FP32, and a list of numbers as doubles."""
    if type(value) is str:
        try:
            data = base64_bytes(value)
        except ValueError as error:
            raise MalformedMessage("an embedding of the response is no base64") from error
        if len(data) % _FLOAT or not data:
            raise MalformedMessage(f"an embedding has {len(data)} bytes, which are no FP32")
        return np.frombuffer(data, "<f4")
    if type(value) is not list or not value or not set(map(type, value)) <= {int, float}:
        raise MalformedMessage("an embedding of the response is neither base64 nor numbers")
    charge(len(value) / 8)
    return np.array(value, np.float64)


def _scores(document: dict[str, Any], count: int) -> npt.NDArray[Any]:
    """Return the scores in the order of the documents; NaN for those that `top_n` leaves out."""
    results = document.get("results")
    if type(results) is not list or len(results) > count:
        raise MalformedMessage("the response has no list of results, or too many")
    scores = np.full(count, np.nan)
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
    return scores


def _choices(document: dict[str, Any], count: int) -> Tensor:
    entries = _in_order(document.get("choices"), count, "choices")
    texts = [each.get("text") for each in entries]
    if not all(type(text) is str for text in texts):
        raise MalformedMessage("a choice of the response has no text")
    return items_tensor("", (count,), [_utf8(str(text)) for text in texts])


def _utf8(text: str) -> bytes:
    """Return a text as bytes; half of a character is U+FFFD, and two halves are one."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _named(call: InferRequest, tensor: Tensor, options: OpenAiOptions) -> Tensor:
    """Return an output with the name that the request has, or else that of the metadata."""
    if call.outputs:
        return tensor.renamed(call.outputs[0].name)
    return tensor.renamed(metadata_of(ModelRef(""), options).outputs[0].name)
