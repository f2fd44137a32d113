"""The side of a client: requests to servers of TensorFlow Serving and KServe V1, and their replies.

Predictions are columns for TensorFlow Serving, which leave each tensor its own first axis, and rows
for KServe V1.

Source: docs/protocols/tensorflow-serving.md, "13. Upstreams".
"""

import json
import math
from functools import partial
from typing import Any, Final

import orjson

from gateway.api.protocol import Handling
from gateway.ir import errors
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import ModelMetadata, RepositoryEntry
from gateway.ir.tensors.data import UntypedRules
from gateway.protocols.tfs.errors import FORM
from gateway.protocols.tfs.http.paths import MODELS, upstream_path
from gateway.protocols.tfs.metadata import FIELD, read_metadata_document
from gateway.protocols.tfs.models import required_model, required_version, version_is_same
from gateway.protocols.tfs.options import TfsOptions
from gateway.wire.errors import SUCCESSES
from gateway.wire.heads.metadata import get_request, http_headers
from gateway.wire.heads.url_names import url_segment
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json.errors import JSON
from gateway.wire.json.values import read_value
from gateway.wire.opaque import passed_request
from gateway.wire.rows.read import RowsReader, is_list, read_rows_document
from gateway.wire.rows.write import NonfiniteStyle, RowStyle, columns_json, rows_json

_SERVER_ERRORS: Final = range(500, 600)
_ABSENT: Final = (404, 503)
_STYLE: Final = RowStyle(nonfinite=NonfiniteStyle.WORDS, has_b64=True)
_MODELS: Final = 10_000


class TfsRestClient:
    """Writes requests to servers of one dialect, and reads their responses.

    Args:
        limits: The limits of a message.
        options: The options of the upstream.

    Attributes:
        calls: How it handles each kind of call, with no responses to clients.
    """

    def __init__(self, limits: MessageLimits, options: TfsOptions) -> None:
        self._limits = limits
        self._options = options
        health = Handling(
            partial(get_request, path="/" if options.is_kserve else f"{MODELS}/"),
            self._is_live,
            by_status=self._is_there,
        )
        self.calls: dict[type[Call[Any]], Handling] = {
            InferRequest: Handling(self._prediction, self._read_prediction),
            ServerLiveRequest: health,
            ServerReadyRequest: health,
            ModelReadyRequest: Handling(
                lambda call: get_request(call, self._path(call, "")),
                self._is_ready,
                by_status=_is_absent,
            ),
        }
        if options.is_kserve:
            index = Handling(partial(get_request, path=MODELS), self._read_models)
            self.calls[RepositoryIndexRequest] = index
        else:
            self.calls[ModelMetadataRequest] = Handling(
                lambda call: get_request(call, self._path(call, "/metadata")), self._read_metadata
            )

    def send_on(self, call: Call[Any], message: Origin) -> HttpRequest:
        """Return a client's request, with the path of the target's model."""
        model, form = required_model(call), message.form
        called = form.called
        if self._options.is_kserve:
            return passed_request(call, message, upstream_path(model.name, 0, form.rest))
        is_same = version_is_same(call, called.model)
        label = called.spec.label if is_same else ""
        rest = f"/labels/{url_segment(label)}{form.rest}" if label else form.rest
        version = required_version(called.model if is_same else model)
        return passed_request(call, message, upstream_path(model.name, version, rest))

    def _prediction(self, call: InferRequest) -> HttpRequest:
        path = self._path(call, ":predict")
        if self._options.is_kserve:
            body = b'{"instances":' + rows_json(call.inputs, _STYLE) + b"}"
        else:
            head = b"{"
            if self._options.signature:
                head += b'"signature_name":' + orjson.dumps(self._options.signature) + b","
            body = head + b'"inputs":' + columns_json(call.inputs, _STYLE) + b"}"
        headers = Headers((*http_headers(call.context), JSON))
        return HttpRequest("POST", path, "", headers, (body,), call.context.deadline)

    def _path(self, call: Call[Any], rest: str) -> str:
        model = required_model(call)
        if self._options.is_kserve:
            return upstream_path(model.name, 0, rest)
        return upstream_path(model.name, required_version(model), rest)

    def _read_prediction(self, call: InferRequest, wire: HttpResponse) -> InferResponse:
        document = read_rows_document(wire.view, "the response", self._limits)
        rules = UntypedRules(
            protocol="tfs", has_nulls=True, bytes_element_size=self._limits.bytes_element_size
        )
        reader = RowsReader(document, self._limits, rules)
        key = "predictions" if "predictions" in document.members else "outputs"
        if key not in document.members:
            known = ", ".join(map(repr, list(document.members)[:8])) or "none"
            raise errors.MalformedMessage(
                f"the response has neither predictions nor outputs: it has {known}"
            )
        is_rows = key == "predictions" and is_list(document.members[key])
        outputs = reader.rows(key, allows_empty=True) if is_rows else reader.columns(key)
        return InferResponse(
            model=call.model or ModelRef(""),
            outputs=outputs,
            id=call.id,
            origin=Origin(FORM.codec, wire),
        )

    def _is_there(self, wire: HttpResponse) -> bool | None:
        """Return whether a server is there; the error of TensorFlow Serving is that of a path."""
        if wire.status in SUCCESSES or self._options.is_kserve:
            return None
        return wire.status not in _SERVER_ERRORS

    def _is_live(self, _call: Call[bool], wire: HttpResponse) -> bool:
        document = self._object(wire)
        return not self._options.is_kserve or str(document.get("status")).lower() == "alive"

    def _is_ready(self, _call: ModelReadyRequest, wire: HttpResponse) -> bool:
        document = self._object(wire)
        versions = document.get("model_version_status")
        if isinstance(versions, list):
            return any(type(each) is dict and each.get("state") == "AVAILABLE" for each in versions)
        return document.get("ready") in (True, "True", "true")

    def _read_metadata(self, call: ModelMetadataRequest, wire: HttpResponse) -> ModelMetadata:
        name, document = required_model(call).name, self._object(wire)
        try:
            spec, signatures = document["model_spec"], document["metadata"][FIELD][FIELD]
            signature = self._options.signature
            return read_metadata_document(name, spec, signatures, signature, self._limits)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise errors.MalformedMessage(
                f"metadata of model {name!r} cannot be read: {type(error).__name__} {error}"
            ) from error

    def _read_models(
        self, _call: RepositoryIndexRequest, wire: HttpResponse
    ) -> tuple[RepositoryEntry, ...]:
        names = self._object(wire).get("models")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise errors.MalformedMessage("the list of models has no list of names")
        check_count("models", len(names), _MODELS, "models")
        most = self._limits.model_name_bytes
        for name in names:
            check_name("model name", name, most, "model_name_bytes")
        return tuple([RepositoryEntry(name) for name in names])

    def _object(self, wire: HttpResponse) -> dict[str, Any]:
        document = read_value(wire.view, "the response", self._limits)
        if type(document) is not dict:
            raise errors.MalformedMessage("the response is no JSON object")
        return document


def _is_absent(wire: HttpResponse) -> bool | None:
    return False if wire.status in _ABSENT else None


def dump_words(document: Any) -> bytes:
    """Return JSON in which numbers that are not finite are words."""
    text = orjson.dumps(document)
    if b"null" not in text or not _has_nonfinite(document):
        return text
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _has_nonfinite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_nonfinite, value))
