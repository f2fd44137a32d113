"""The side of a client: requests to servers of TorchServe, and their responses.

Nothing tells the inputs of such a server's models: `models.NAME.signature` declares them.

Source: docs/protocols/torchserve.md, "9. Upstreams".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from gateway.api.protocol import Handling
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    OpaqueCall,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import Unsupported
from gateway.protocols.torchserve.errors import FORM, OK
from gateway.protocols.torchserve.http.form_fields import JSON_TYPE, multipart_form
from gateway.protocols.torchserve.messages import (
    BodyReader,
    Item,
    required_model,
    write_fields,
    write_request,
)
from gateway.protocols.torchserve.models import BodyForms
from gateway.protocols.torchserve.paths import PING, PREDICTIONS
from gateway.wire.heads.metadata import get_request, http_headers
from gateway.wire.heads.url_names import url_segment
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse, media_type
from gateway.wire.opaque import passed_request

NAME: Final = FORM.codec


class TorchServeRestClient:
    """Writes requests to servers, and reads their responses.

    Args:
        models: What is declared of models.
        reader: Reads the bodies of responses.

    Attributes:
        calls: How it handles each kind of call, with no responses to clients.
    """

    def __init__(self, models: BodyForms, reader: BodyReader) -> None:
        self._models = models
        self._reader = reader
        health = Handling(partial(get_request, path=PING), by_status=lambda wire: wire.status == OK)
        self.calls: Mapping[type[Call[Any]], Handling] = {
            InferRequest: Handling(
                self._prediction, self._read_prediction, send_on=self._sent_prediction
            ),
            OpaqueCall: Handling(send_on=self._sent),
            ServerLiveRequest: health,
            ServerReadyRequest: health,
            ModelReadyRequest: health,
        }

    def _prediction(self, call: InferRequest) -> HttpRequest:
        form = self._models.form(required_model(call).name)
        kind: str
        body: Buffer
        if form.has_columns:
            kind, body = multipart_form(write_fields(call.inputs))
        else:
            kind, body = write_request(call, form)
        context = call.context
        headers = Headers((("Content-Type", kind), *http_headers(context), *_sequence(call)))
        path = self._path(call, PREDICTIONS)
        return HttpRequest("POST", path, "", headers, (body,), context.deadline)

    def _sent_prediction(self, call: InferRequest, message: Origin) -> HttpRequest:
        """Return a client's request, with the path of the target's model."""
        return passed_request(call, message, self._path(call, PREDICTIONS), *_sequence(call))

    def _sent(self, call: OpaqueCall, message: Origin) -> HttpRequest:
        """Return a client's request for an explanation, or for the description of a model.

        Raises:
            Unsupported: The description is of a model that has another name here.
        """
        if isinstance(message.form, str):
            return passed_request(call, message, self._path(call, message.form))
        if call.model != message.form.called.model:
            raise Unsupported("a description has the name of the model", model=call.model)
        return passed_request(call, message, self._path(call, PREDICTIONS))

    def _path(self, call: Call[Any], place: str) -> str:
        model = required_model(call)
        path = f"{place}/{url_segment(model.name)}"
        version = self._models.version_of(model)
        return f"{path}/{url_segment(version)}" if version else path

    def _read_prediction(self, call: InferRequest, wire: HttpResponse) -> InferResponse:
        model = call.model or ModelRef("")
        is_json = media_type(wire.headers.get("content-type")) == JSON_TYPE
        item = Item(wire.view, is_json, "response")
        outputs = self._reader.response(item, self._models.form(model.name))
        return InferResponse(model=model, outputs=outputs, batch_size=1)


def _sequence(call: InferRequest) -> tuple[tuple[str, str], ...]:
    sequence = call.sequence
    if sequence is None:
        return ()
    pairs = [("ts_request_sequence_id", str(sequence.id))]
    if sequence.start:
        pairs.append(("ts_request_sequence_start", "true"))
    if sequence.end:
        pairs.append(("ts_request_sequence_end", "true"))
    return tuple(pairs)
