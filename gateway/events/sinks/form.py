"""The form of events: attributes of CloudEvents as KServe's logger names them, and JSON of V2.

Source: CloudEvents 1.0.2; KServe, pkg/logger/worker.go; Open Inference Protocol, HTTP/REST.
"""

import json
import re
import socket
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from gateway.events.choice import privacy_of
from gateway.events.definition import SinkDefinition
from gateway.events.messages import REQUEST, EventNote
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.protocols.oip.json.write import elements_text
from gateway.shadow.records.column_texts import parse_details, parse_parameters, parse_shape
from gateway.shadow.records.privacy import Hasher, Payload, least_payload
from gateway.shadow.records.records import (
    ABSENT,
    INPUT,
    JSON,
    OLD,
    SLICED,
    RecordedCall,
    TensorRow,
)

CONTENT_TYPE: Final = "application/json"
TYPES: Final[Mapping[int, str]] = {
    1: "org.kubeflow.serving.inference.request",
    2: "org.kubeflow.serving.inference.response",
}
"""The type of each event, by its bit."""

_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_UNSAFE: Final = re.compile(r"[^\x20-\x24\x26-\x7e]")


@cache
def _own_namespace() -> str:
    try:
        return _NAMESPACE.read_text("utf-8").strip() or "default"
    except (OSError, ValueError):
        return "default"


class EventForm:
    """Writes the events of one sink.

    Args:
        sink: Its definition.
        hasher: Hashes elements.
    """

    def __init__(self, sink: SinkDefinition, hasher: Hasher) -> None:
        self._privacy = privacy_of(sink)
        self._hasher = hasher
        self._own = {
            "source": socket.gethostname(),
            "inferenceservicename": "",
            "namespace": _own_namespace(),
            "component": "predictor",
            "endpoint": "default",
            **sink.config.attributes,
        }

    def attributes(self, record: RecordedCall, note: EventNote, event: int) -> dict[str, str]:
        """Return the attributes of an event, without the prefix of a carrier."""
        call = record.call
        ended_us = call.at_us + call.took_us
        found = {
            "specversion": "1.0",
            "type": TYPES[event],
            "id": note.ce_id,
            "time": _time_text(call.at_us if event == REQUEST else ended_us),
            "recordedtime": _time_text(ended_us),
            **self._own,
            "metadata": json.dumps(self._metadata(record)),
            "model": call.model,
            "modelversion": note.version or call.version,
            "protocol": call.protocol,
            "requestid": call.request_id,
        }
        if not found["inferenceservicename"]:
            found["inferenceservicename"] = call.model
        return found

    def _metadata(self, record: RecordedCall) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in parse_details(record.call.details).get("headers", ()):
            if name in self._privacy.headers:
                found.setdefault(name, []).append(value)
        return found

    def body(self, record: RecordedCall, note: EventNote, event: int) -> bytes:
        """Return the request or the reply of a call as JSON of V2.

        Raises:
            LongWork: It would block the event loop for too long.
        """
        return self._request(record) if event == REQUEST else self._reply(record, note)

    def _request(self, record: RecordedCall) -> bytes:
        call, details = record.call, parse_details(record.call.details)
        inputs = [each for each in record.tensors if each.side == INPUT]
        members: list[tuple[str, bytes]] = []
        if details.get("id"):
            members.append(("id", _dump(details["id"])))
        parameters = self._parameters(call.parameters) | self._call_parameters(record, details)
        if parameters:
            members.append(("parameters", _dump(parameters)))
        members.append(("inputs", self._tensors("input", inputs, details.get("batch_size"))))
        if details.get("outputs"):
            outputs = [_requested(name, classes) for name, classes in details["outputs"]]
            members.append(("outputs", _dump(outputs)))
        return _object(members)

    def _call_parameters(self, record: RecordedCall, details: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if record.call.sequence is not None:
            found["sequence_id"], start, end = json.loads(record.call.sequence)
            found |= {"sequence_start": bool(start), "sequence_end": bool(end)}
        if details.get("priority"):
            found["priority"] = details["priority"]
        if details.get("timeout_us"):
            found["timeout"] = details["timeout_us"]
        if self._privacy.parameters:
            found |= details.get("flat_members", {})
            found |= details.get("texts", {}).get("members", {})
        return found

    def _reply(self, record: RecordedCall, note: EventNote) -> bytes:
        call, details = record.call, parse_details(record.call.details)
        members = [
            ("model_name", _dump(call.model)),
            ("model_version", _dump(note.version or call.version)),
        ]
        if details.get("id"):
            members.append(("id", _dump(details["id"])))
        parameters: dict[str, Any] = {}
        for item in record.items:
            parameters |= self._parameters(item.parameters)
        if parameters:
            members.append(("parameters", _dump(parameters)))
        outputs = [each for each in record.tensors if each.side == OLD]
        if len(record.items) > 1:
            outputs = _join_replies(outputs)
        members.append(("outputs", self._tensors("output", outputs, None)))
        return _object(members)

    def _parameters(self, text: str | None) -> dict[str, Any]:
        if text is None or not self._privacy.parameters:
            return {}
        return dict(parse_parameters(text))

    def _tensors(self, kind: str, rows: Sequence[TensorRow], batch_size: int | None) -> bytes:
        names = [each.name for each in rows if each.form == SLICED]
        slices = least_payload([self._privacy.of_tensor(name) for name in names] or ["full"])
        texts = []
        for row in rows:
            payload = slices if row.form == SLICED else self._privacy.of_tensor(row.name)
            texts.append(self._tensor(kind, row, batch_size, payload))
        return b"[%b]" % b",".join(texts)

    def _tensor(self, kind: str, row: TensorRow, batch_size: int | None, payload: Payload) -> bytes:
        members = [("name", _dump(row.name))]
        shape = None if row.shape is None else parse_shape(row.shape)
        if shape is not None and batch_size is not None:
            shape = (batch_size, *shape)
        if shape is not None:
            members.append(("shape", _dump(shape)))
        if row.datatype is not None:
            members.append(("datatype", _dump(Datatype[row.datatype].value)))
        if payload != "none" and row.data is not None and row.form != ABSENT:
            view = memoryview(row.data)
            if payload == "hash":
                members.append(("hash", _dump(self._hasher(view).hex())))
            else:
                members.append(_elements(kind, row, shape, view))
        return _object(members)


def _elements(
    kind: str, row: TensorRow, shape: tuple[int, ...] | None, view: memoryview
) -> tuple[str, bytes]:
    """Return the elements of a tensor as JSON, or in base64 where JSON cannot hold them."""
    if row.form == JSON:
        return "data", bytes(view)
    if row.datatype is not None and shape is not None and row.form != SLICED:
        tensor = Tensor(row.name, Datatype[row.datatype], shape, RawData(view))
        try:
            return "data", elements_text(kind, tensor, "")
        except GatewayError:
            pass  # its bytes are sent as they are
    return "b64", b'"%b"' % b64encode(view)


def _join_replies(rows: Sequence[TensorRow]) -> list[TensorRow]:
    """Return the outputs of a stream, each joined over all replies along its first axis."""
    found: list[TensorRow] = []
    ordered = sorted(rows, key=lambda row: row.name)  # stable: in the order of the replies
    for _, group in groupby(ordered, key=lambda row: row.name):
        parts = list(group)
        found += [parts[0]] if len(parts) == 1 else _join(parts)
    return sorted(found, key=lambda row: (row.item, row.place))


def _join(parts: list[TensorRow]) -> list[TensorRow]:
    """Return one tensor for several; themselves where their datatypes or other axes differ."""
    shapes = [None if each.shape is None else parse_shape(each.shape) for each in parts]
    rests = [shape and shape[1:] for shape in shapes]
    kinds = {(each.datatype, each.form, rest) for each, rest in zip(parts, rests, strict=True)}
    if len(kinds) > 1 or any(not shape for shape in shapes) or parts[0].form not in {"raw", ABSENT}:
        return parts
    first = shapes[0] or ()
    size = sum(shape[0] for shape in shapes if shape)
    is_whole = all(each.data is not None for each in parts)
    data = b"".join(each.data for each in parts if each.data is not None) if is_whole else None
    row = parts[0]
    whole = TensorRow(
        side=row.side,
        item=row.item,
        place=row.place,
        name=row.name,
        datatype=row.datatype,
        shape=json.dumps((size, *first[1:])),
        form=row.form,
        declared=None,
        size=sum(each.size for each in parts),
        data=data,
    )
    return [whole]


def _requested(name: str, classes: int | None) -> dict[str, Any]:
    return {"name": name, "parameters": {"classification": classes}} if classes else {"name": name}


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _object(members: Sequence[tuple[str, bytes]]) -> bytes:
    return b"{%b}" % b",".join([b'"%b":%b' % (name.encode(), value) for name, value in members])


def _time_text(at_us: int) -> str:
    moment = datetime.fromtimestamp(at_us / 1e6, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def header_value(value: str) -> str:
    """Return a value of an attribute as a header has it: other than ASCII is percent-encoded.

    Source: CloudEvents 1.0.2, HTTP protocol binding, 3.1.3.2. Spaces and quotes stay, as KServe
    sends them.
    """
    if _UNSAFE.search(value) is None:
        return value
    data = value.encode("utf-8", "replace")
    return "".join(
        chr(each) if _UNSAFE.search(chr(each)) is None else f"%{each:02X}" for each in data
    )
