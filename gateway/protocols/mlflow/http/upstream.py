"""The side of a client: requests to MLflow's scoring servers, and their responses.

Nothing can be asked of such a server but `/ping`: `models.NAME.signature` declares its model.

Source: docs/protocols/mlflow.md, "7. Servers".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import orjson

from gateway.api.protocol import Handling
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import JsonParameter, ModelRef
from gateway.ir.errors import InvalidRequest, MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import UntypedRules
from gateway.protocols.mlflow.errors import OK
from gateway.protocols.mlflow.http.form import DeclaredRows
from gateway.protocols.mlflow.options import OBJECT, MlflowOptions
from gateway.protocols.mlflow.paths import INVOCATIONS, PING
from gateway.wire.heads.metadata import get_request, http_headers
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from gateway.wire.json.errors import JSON
from gateway.wire.rows.read import RowsReader, read_rows_document
from gateway.wire.rows.write import columns_json, value_json

_RULES: Final = UntypedRules(protocol="mlflow", has_b64=False, has_nulls=True)
_KEY: Final = "predictions"


class ScoringClient:
    """Writes requests to scoring servers, and reads their responses.

    Args:
        limits: The limits of a message.
        options: The options of the upstream.
        declared: What is declared of models.

    Attributes:
        calls: How it handles each kind of call, with no responses to clients.
    """

    def __init__(
        self, limits: MessageLimits, options: MlflowOptions, declared: DeclaredRows
    ) -> None:
        self._limits = limits
        self._options = options
        self._declared = declared
        health = Handling(partial(get_request, path=PING), by_status=lambda wire: wire.status == OK)
        self.calls: Mapping[type[Call[Any]], Handling] = {
            InferRequest: Handling(self._prediction, self._read_prediction),
            ServerLiveRequest: health,
            ServerReadyRequest: health,
            ModelReadyRequest: health,
        }

    def _prediction(self, call: InferRequest) -> HttpRequest:
        name = "" if call.model is None else call.model.name
        style, columns = self._declared.style(name), self._declared.columns(name)
        inputs, member = call.inputs, b"inputs"
        if len(inputs) == 1 and self._options.single_input != OBJECT:
            text = value_json(inputs[0], style)
            if columns:
                _check_columns(call, columns)
                member = b"dataframe_split"
                text = b'{"columns":%b,"data":%b}' % (orjson.dumps(columns), text)
        else:
            text = columns_json(inputs, style)
        parameters = {
            name: orjson.Fragment(value.encode()) if isinstance(value, JsonParameter) else value
            for name, value in call.parameters.items()
        }
        members = b',"params":%b' % orjson.dumps(parameters) if parameters else b""
        body = b'{"%b":%b%b}' % (member, text, members)
        headers = Headers((JSON, *http_headers(call.context)))
        return HttpRequest("POST", INVOCATIONS, "", headers, (body,), call.context.deadline)

    def _read_prediction(self, call: InferRequest, wire: HttpResponse) -> InferResponse:
        document = read_rows_document(wire.view, "the response", self._limits)
        if _KEY not in document.members:
            raise MalformedMessage(f"the response has no {_KEY!r}")
        reader = RowsReader(document, self._limits, _RULES)
        found = document.members[_KEY]
        is_rows = type(found) is not dict and _begins_with_object(found)
        outputs = reader.rows(_KEY) if is_rows else reader.columns(_KEY)
        return InferResponse(model=call.model or ModelRef(""), outputs=outputs)


def _check_columns(call: InferRequest, columns: tuple[str, ...]) -> None:
    (matrix,) = call.inputs
    shape = matrix.shape or ()
    if len(shape) != 2 or shape[1] != len(columns):  # noqa: PLR2004  # a table
        raise InvalidRequest(
            f"input {matrix.name!r} has shape {list(shape)}; expected [-1, {len(columns)}], a "
            "column for each name (models.NAME.protocols.mlflow.column_names)",
            model=call.model,
        )


def _begins_with_object(value: Any) -> bool:
    if not hasattr(value, "__getitem__") or isinstance(value, str) or hasattr(value, "keys"):
        return False
    return len(value) > 0 and hasattr(value[0], "keys")
