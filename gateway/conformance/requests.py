"""Writes the request of a rule: bytes of its protocol, and the command that sends the same."""

import base64
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from google.protobuf import json_format

from gateway.conformance.client_lines import curl_line
from gateway.conformance.graphpipe import request_message
from gateway.conformance.tensors import (
    CertifiedModel,
    InferenceCase,
    elements_of,
    name_of,
    shape_of,
)
from gateway.ir.tensors.tensor import Tensor, as_raw
from gateway.schema.pool import method_classes
from gateway.settings.units import Url
from gateway.wire.grpc import GrpcRequest, Metadata
from gateway.wire.http import Headers, HttpRequest

SERVICE: Final = "inference.GRPCInferenceService"
LENGTH: Final = "inference-header-content-length"
CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of typed contents for each datatype that has one."""
_MOST_COMMAND: Final = 4000
_NO_JSON: Final = frozenset({"FP16", "BF16"})


class CannotAsk(Exception):  # no error: the rule cannot be asked of this model
    """Why a rule cannot be asked."""


@dataclass(frozen=True, slots=True)
class RequestSubject:
    """What a request is about.

    Attributes:
        url: The server.
        headers: Sent with each request, such as a credential.
        model: The model; without a name for rules about the server.
        case: What is sent.
        seed: Chooses the id of a sequence.
    """

    url: Url
    headers: Metadata = ()
    model: CertifiedModel = CertifiedModel("")  # noqa: RUF009  # frozen
    case: InferenceCase = InferenceCase()  # noqa: RUF009  # frozen
    seed: int = 0

    def filled(self, value: Any) -> Any:
        """Return a value of a rule with facts in the place of its texts that begin with `$`."""
        if isinstance(value, Mapping):
            return {self.filled(key): self.filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(inner) for inner in value]
        if isinstance(value, str) and value in _FACTS:
            return _FACTS[value](self)
        return value

    def path(self, text: str) -> str:
        """Return a path with the names of the model and its version."""
        for name in ("$model", "$version"):
            if name in text:
                text = text.replace(name, quote(_FACTS[name](self), safe=""))
        return text


def _first(subject: RequestSubject) -> Tensor:
    if not subject.case.inputs:
        raise CannotAsk(f"model {subject.model.name!r} has no inputs in its metadata")
    return subject.case.inputs[0]


def _output(subject: RequestSubject, at: int) -> str:
    if not subject.model.outputs:
        raise CannotAsk(f"model {subject.model.name!r} has no outputs in its metadata")
    return subject.model.outputs[at].name


def _longer(subject: RequestSubject) -> list[int]:
    *before, last = shape_of(_first(subject)) or (1,)
    return [*before, last + 1]


def _single(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise CannotAsk(f"the rule is about a model of one tensor; it has {len(tensors)}")
    return tensors[0]


def _nested(tensor: Tensor) -> Any:
    """Return the elements as lists in the shape of the tensor."""
    found = list(map(_json_element, elements_of(tensor)))
    for size in reversed(shape_of(tensor)[1:]):
        found = [found[at : at + size] for at in range(0, len(found), size or 1)]
    return found


def _columns(tensors: Sequence[Tensor]) -> Any:
    """Return the data of a single tensor, or those of several by name."""
    if not tensors:
        raise CannotAsk("its inputs and outputs are not known: --model NAME --expect FILE")
    found = {each.name: _nested(each) for each in tensors}
    return found if len(found) > 1 else next(iter(found.values()))


def _rows(tensors: Sequence[Tensor]) -> Any:
    """Return the items along the first axis; of several tensors each is an object."""
    columns = _columns(tensors)
    if not isinstance(columns, dict):
        return columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


_FACTS: Final[Mapping[str, Callable[[RequestSubject], Any]]] = {
    "$model": lambda subject: subject.model.name,
    "$version": lambda subject: subject.model.versions[-1],
    "$input": lambda subject: _single(subject.case.inputs).name,
    "$shape": lambda subject: list(shape_of(_single(subject.case.inputs))),
    "$values": lambda subject: elements_of(_single(subject.case.inputs)),
    "$raw": lambda subject: _base64(as_raw(_single(subject.case.inputs))),
    "$known_values": lambda subject: elements_of(_single(subject.case.outputs)),
    "$known_raw": lambda subject: _base64(as_raw(_single(subject.case.outputs))),
    "$dims": lambda subject: [{"size": each} for each in shape_of(_single(subject.case.inputs))],
    "$output": lambda subject: _output(subject, 0),
    "$last_output": lambda subject: _output(subject, -1),
    "$longer": _longer,
    "$nested": lambda subject: _nested(_first(subject)),
    "$ones": lambda subject: [1] * math.prod(shape_of(_first(subject))),
    "$zeros": lambda subject: _base64(bytes(4 * math.prod(shape_of(_first(subject))))),
    "$deep_json": lambda _: "[" * 300_000,
    "$deeper": lambda subject: [*shape_of(_first(subject)), 1],
    "$other": lambda subject: "INT32" if name_of(_first(subject)) != "INT32" else "FP32",
    "$columns": lambda subject: _columns(subject.case.inputs),
    "$rows": lambda subject: _rows(subject.case.inputs),
    "$known_columns": lambda subject: _columns(subject.case.outputs),
    "$known_rows": lambda subject: _rows(subject.case.outputs),
    "$seeded": lambda subject: 1 + subject.seed % 1_000_000,
}


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """One request.

    Attributes:
        wire: What is sent.
        command: What sends the same.
        is_stream: Its replies are a stream.
        table: The root of the reply, where it is a message of GraphPipe.
    """

    wire: HttpRequest | GrpcRequest
    command: str
    is_stream: bool = False
    table: str = ""


def request_of(step: Mapping[str, Any], subject: RequestSubject) -> RuleRequest:
    """Return the request of a step.

    Raises:
        CannotAsk: The model has no inference in the form of the step.
    """
    made = (_http if subject.url.carrier == "http" else _grpc)(step, subject)
    size = len(made.command)
    if size > _MOST_COMMAND:
        made = replace(made, command=f"{made.command[:_MOST_COMMAND]}... ({size} characters)")
    return made


def _changed(
    document: dict[str, Any], step: Mapping[str, Any], subject: RequestSubject
) -> dict[str, Any]:
    path = ""
    try:
        for path, value in step.get("set", {}).items():
            inner, name = _place(document, path)
            inner[name] = subject.filled(value)
        for path in step.get("drop", ()):
            inner, name = _place(document, path)
            del inner[name]
    except (LookupError, TypeError) as error:
        raise CannotAsk(
            f"the request of model {subject.model.name!r} has no member {path!r}"
        ) from error
    return document


def _place(document: Any, path: str) -> tuple[Any, Any]:
    keys: list[Any] = [int(part) if part.isdigit() else part for part in path.split(".")]
    for key in keys[:-1]:
        document = document[key] if isinstance(document, list) else document.setdefault(key, {})
    return document, keys[-1]


def _http(step: Mapping[str, Any], subject: RequestSubject) -> RuleRequest:
    method = "GET" if "get" in step else "POST"
    places = (step[key] for key in ("path", "get", "post") if key in step)
    path = next(places, "/v2/models/$model/infer")
    headers, body, tail = dict(step.get("headers", {})), b"", b""
    if "infer" in step:
        document, tail = _http_inference(subject.case, step["infer"])
        body = json.dumps(_changed(document, step, subject)).encode()
    elif "message" in step:
        body = request_message(subject.filled(step["message"]))
    elif "json" in step:
        body = json.dumps(_changed(subject.filled(step["json"]), step, subject)).encode()
    body = subject.filled(step["body"]).encode() if "body" in step else body
    if tail:
        headers = {"inference-header-content-length": str(len(body))} | headers
    if method == "POST":
        kind = "application/octet-stream" if tail or "message" in step else "application/json"
        headers = {"content-type": kind} | headers
    headers = {name: value for name, value in headers.items() if value is not None}
    body += tail + step.get("append", "").encode()
    body = body[: len(body) - step.get("cut", 0)]
    path = subject.path(path) or ("" if subject.url.path else "/")
    shown, sent = (
        HttpRequest(method, path, headers=Headers((*headers.items(), *more)), body=(body,))
        for more in ((), _texts(subject.headers))  # a credential is not shown
    )
    return RuleRequest(sent, _curl(shown, subject.url), table=step.get("table", ""))


def _texts(metadata: Metadata) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in metadata if isinstance(value, str))


def _http_inference(case: InferenceCase, form: str) -> tuple[dict[str, Any], bytes]:
    document: dict[str, Any] = {"id": "certify", "inputs": []}
    tail = b""
    for at, tensor in enumerate(case.inputs):
        entry, has_json = _entry(tensor), name_of(tensor) not in _NO_JSON
        if form == "binary" or (form == "mixed" and (not at or not has_json)):
            raw = as_raw(tensor)
            entry["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        elif has_json:
            entry["data"] = list(map(_json_element, elements_of(tensor)))
        else:
            raise CannotAsk(f"input {tensor.name!r} is {name_of(tensor)}, which JSON does not have")
        document["inputs"].append(entry)
    if form == "binary":
        document["parameters"] = {"binary_data_output": True}
    return document, tail


def _entry(tensor: Tensor) -> dict[str, Any]:
    shape = list(shape_of(tensor))
    return {"name": tensor.name, "shape": shape, "datatype": name_of(tensor)}


def _json_element(element: Any) -> Any:
    if not isinstance(element, bytes):
        return element
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise CannotAsk("JSON does not have elements that are no text") from error


def _curl(wire: HttpRequest, url: Url) -> str:
    socket = ["--unix-socket", url.socket] if url.socket else []
    server = f"http{'s' * url.tls}://{'localhost' if url.socket else url.authority}{url.path}"
    return curl_line(wire, ["curl", "-sS", "-i", *socket], server)


def _grpc(step: Mapping[str, Any], subject: RequestSubject) -> RuleRequest:
    is_stream = bool(step.get("stream"))
    method = step.get("call") or f"{SERVICE}/{'ModelStreamInfer' if is_stream else 'ModelInfer'}"
    document = _grpc_inference(subject, step["infer"]) if "infer" in step else {}
    document |= subject.filled(step.get("message", {}))
    document = _changed(document, step, subject)
    classes = method_classes(subject.url.protocol, method)
    message = b""
    if classes is not None:
        message = json_format.ParseDict(document, classes[0]()).SerializeToString()
    wire = GrpcRequest(f"/{method}", (message,), subject.headers)
    return RuleRequest(wire, _grpcurl(method, document, subject.url), is_stream)


def _grpc_inference(subject: RequestSubject, form: str) -> dict[str, Any]:
    document: dict[str, Any] = {"model_name": subject.model.name, "id": "certify", "inputs": []}
    for tensor in subject.case.inputs:
        entry, field = _entry(tensor), CONTENTS.get(name_of(tensor))
        if form == "raw":
            document.setdefault("raw_input_contents", []).append(_base64(as_raw(tensor)))
        elif field is not None:
            entry["contents"] = {field: list(map(_message_element, elements_of(tensor)))}
        else:
            raise CannotAsk(f"input {tensor.name!r} is {name_of(tensor)}: it has no typed contents")
        document["inputs"].append(entry)
    return document


def _message_element(element: Any) -> Any:
    if isinstance(element, bytes):
        return _base64(element)
    if isinstance(element, float) and element - element != 0:  # NaN or an infinity
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(element), "NaN")
    return element


def _base64(data: bytes | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


def _grpcurl(method: str, document: Mapping[str, Any], url: Url) -> str:
    words = ["grpcurl", *([] if url.tls else ["-plaintext"])]
    words += [*(["-unix"] if url.socket else []), "-d", json.dumps(document)]
    return shlex.join([*words, url.socket or url.authority, method])
