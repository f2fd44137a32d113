"""Questions of the management: lists of models, and descriptions of their versions.

`TorchServeForm` is what the codecs keep of any request for its response.

Source: docs/protocols/torchserve.md, "8. Management".
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from gateway.api.protocol import unsupported
from gateway.ir.calls import Call, RepositoryIndexRequest, ServerStatusRequest
from gateway.ir.errors import InvalidRequest, ModelNotFound, VersionNotFound
from gateway.ir.metadata import ModelState, ModelStatus, RepositoryEntry, ServerStatus
from gateway.protocols.torchserve.declarations import NO_FORM, BodyForm
from gateway.protocols.torchserve.models import TorchServeModel, client_version

_LIMIT: Final = 100
_API: Final = "0.12.0"
# What describes a model beside name and state: defaults of the server, zeros for what is unknown.
_DEFAULTS: Final[dict[str, Any]] = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "maxBatchDelay": 0,
    "responseTimeout": 120,
    "startupTimeout": 120,
    "maxRetryTimeoutInSec": 300,
    "clientTimeoutInMills": 0,
    "parallelType": "",
    "parallelLevel": 0,
    "deviceType": "cpu",
    "continuousBatching": False,
    "useJobTicket": False,
    "useVenv": False,
    "stateful": False,
    "sequenceMaxIdleMSec": 0,
    "sequenceTimeoutMSec": 0,
    "maxNumSequence": 0,
    "maxSequenceJobQueueSize": 0,
    "loadedAtStartup": True,
    "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0},
}
_WORKER: Final[dict[str, Any]] = {
    "id": "9000",
    "startTime": "1970-01-01T00:00:00.000Z",
    "memoryUsage": 0,
    "pid": 0,
    "gpu": False,
    "gpuUsage": "N/A",
}
_READY: Final = frozenset({ModelState.READY, ModelState.UNKNOWN})
HEALTHY: Final = b'{\n  "status": "Healthy"\n}\n'
UNHEALTHY: Final = b'{\n  "status": "Unhealthy"\n}\n'


class ModelListPage:
    """A part of the list of models.

    Args:
        limit: Most models, as a client wrote it; "" for 100.
        token: The number of the first one, as a client wrote it; "" for the first of all.

    Raises:
        InvalidRequest: One is no number.
    """

    def __init__(self, limit: str, token: str) -> None:
        self.limit = _number("limit", limit) or _LIMIT
        self.begin = _number("next_page_token", token)


class TorchServeForm(Struct, frozen=True):
    """What the response to a request needs.

    Attributes:
        called: The model; None for a question about the server.
        page: The part of the list of models.
        sequence: gRPC: id of the sequence; "" for none.
        is_session: gRPC: the request is one of a stream, whose other requests an error leaves
            alone.
    """

    called: TorchServeModel | None = None
    page: ModelListPage | None = None
    sequence: str = ""
    is_session: bool = False

    @property
    def body(self) -> BodyForm:
        """What is declared of the model."""
        return NO_FORM if self.called is None else self.called.form


_NO_FORM: Final = TorchServeForm()


def form_of(call: Call[Any] | None) -> TorchServeForm:
    """Return what a codec of TorchServe kept for the response; no form for a call of another."""
    origin = None if call is None else call.context.origin
    form = None if origin is None else origin.form
    return form if isinstance(form, TorchServeForm) else _NO_FORM


def list_document(call: RepositoryIndexRequest, entries: Sequence[RepositoryEntry]) -> bytes:
    """Return the requested page of the list of models.

    Raises:
        Unsupported: The call is of another protocol.
    """
    page = form_of(call).page
    if page is None:
        raise unsupported(call, "TorchServe")
    names = sorted({entry.name for entry in entries})
    shown = names[page.begin : page.begin + page.limit]
    document: dict[str, Any] = {}
    if page.begin + page.limit < len(names):
        document["nextPageToken"] = str(page.begin + page.limit)
    document["models"] = [{"modelName": name, "modelUrl": name} for name in shown]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def description_document(call: ServerStatusRequest, status: ServerStatus) -> bytes:
    """Return the descriptions of the versions of a model, all of them or one.

    Raises:
        ModelNotFound: There is no such model.
        VersionNotFound: It does not have the version.
        Unsupported: The call is of another protocol.
    """
    called = form_of(call).called
    if called is None:
        raise unsupported(call, "TorchServe")
    name = called.name
    if not status.models:
        raise ModelNotFound(f"Model not found: {name}")
    model = status.models[0]
    states = {entry.version: entry.state for entry in model.entries if entry.version}
    states = dict.fromkeys(model.metadata.versions, ModelState.UNKNOWN) | states
    if not states:
        states = {"": model.entries[0].state if model.entries else ModelState.UNKNOWN}
    if called.version:
        wanted = "" if called.model is None else called.model.version
        if not (wanted in states or (wanted == "1" and set(states) == {""})):
            raise VersionNotFound(
                f"Model version: {called.version} does not exist for model: {name}"
            )
        states = {wanted: states.get(wanted, ModelState.UNKNOWN)}
    found = [_described(called, model, version, state) for version, state in states.items()]
    return orjson.dumps(found, option=orjson.OPT_INDENT_2)


def _described(
    called: TorchServeModel, model: ModelStatus, version: str, state: ModelState
) -> dict[str, Any]:
    is_ready = state in _READY
    return {
        "modelName": called.name,
        "modelVersion": client_version(version or "1", called.form),
        "modelUrl": called.name,
        "runtime": model.metadata.platform or "python",
        "batchSize": max(1, model.metadata.max_batch_size or 1),
        **_DEFAULTS,
        "workers": [{**_WORKER, "status": "READY" if is_ready else "UNLOADING"}],
    }


def api_document(model: str) -> bytes:
    """Return an OpenAPI document of the predictions of a model, or of the server for ""."""
    name = model or "{model_name}"
    answers = {"200": {"description": "OK"}, "400": {"description": "the request is wrong"}}
    paths: dict[str, Any] = {
        f"/predictions/{name}": {"post": {"operationId": "predictions", "responses": answers}}
    }
    if not model:
        paths |= {
            "/ping": {"get": {"operationId": "ping", "responses": {"200": answers["200"]}}},
            "/models": {"get": {"operationId": "listModels", "responses": {"200": answers["200"]}}},
        }
    title = f"RESTful API for: {model}" if model else "TorchServe APIs"
    document = {"openapi": "3.0.1", "info": {"title": title, "version": _API}, "paths": paths}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _number(key: str, value: str) -> int:
    if not value:
        return 0
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):  # noqa: PLR2004
        raise InvalidRequest(f"{key} is {value[:40]!r}: expected a number")
    return int(value)
