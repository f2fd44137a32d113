"""Copies a capture without some of its data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace as changed  # noqa: TID251  # rows have no wire origin

from gateway.ir.text_tasks import GENERATE
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.segment_writer import SegmentWriter
from gateway.settings.private_files import make_directory
from gateway.shadow.records.privacy import Hasher, Payload, least_payload
from gateway.shadow.records.records import SLICED, UNTYPED, RecordedCall, TensorRow
from gateway.shadow.records.untyped import untyped_payload

_SEGMENT_BYTES = 256 << 20
_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What to remove.

    Attributes:
        tensors: What stays of the elements of tensors, by name.
        others: What stays of all other tensors.
        headers: Remove headers.
        parameters: Remove parameters.
        clients: Remove addresses, agents and names of clients.
    """

    tensors: Mapping[str, Payload] = field(default_factory=dict)
    others: Payload = "full"
    headers: bool = False
    parameters: bool = False
    clients: bool = False

    def of_tensor(self, name: str) -> Payload:
        """Return what stays of the elements of the tensor *name*."""
        return self.tensors.get(name, self.others)

    @property
    def keeps_messages(self) -> bool:
        """Whether messages may stay: they contain all tensors, headers and parameters."""
        nothing = not (self.headers or self.parameters or self.clients)
        return nothing and self.others == "full" and set(self.tensors.values()) <= {"full"}


def redact(capture: Capture, directory: Path, redaction: Redaction) -> int:
    """Write the calls of *capture* to a new capture, and return their number.

    Raises:
        OSError: The directory cannot be written.
        sqlite3.Error: The same.
    """
    make_directory(directory)
    hasher = Hasher()
    description = {**capture.description(), "redacted": "yes"}
    writer: SegmentWriter | None = None
    count = 0
    for call in capture.calls():
        if writer is None:
            writer = SegmentWriter(directory, description)
            writer.begin()
        writer.add(_redacted(call, redaction, hasher))
        count += 1
        if not count % _BATCH:
            writer.commit()
            if writer.nbytes >= _SEGMENT_BYTES:
                writer.seal({})
                writer = None
            else:
                writer.begin()
    if writer is not None:
        writer.commit()
        writer.seal({})
    return count


def _redacted(record: RecordedCall, redaction: Redaction, hasher: Hasher) -> RecordedCall:
    call = record.call
    details = json.loads(call.details)
    if redaction.headers:
        details.pop("headers", None)
    if redaction.clients:
        details.pop("client_name", None)
    if redaction.parameters or not redaction.keeps_messages:
        details.pop("flat_members", None)  # tensors that are not told from parameters
        if details.get("texts", {}).get("type") == GENERATE:
            details.pop("texts")  # its members are parameters
    call = changed(
        call,
        details=json.dumps(details),
        parameters=None if redaction.parameters else call.parameters,
        client="" if redaction.clients else call.client,
        agent="" if redaction.clients else call.agent,
        error=call.error if redaction.keeps_messages else "",
    )
    items = record.items
    if redaction.parameters:
        items = [changed(each, parameters=None) for each in items]
    names = [each.name for each in record.tensors if each.form == SLICED]
    slices = least_payload([redaction.of_tensor(name) for name in names] or ["full"])
    tensors = [_redacted_tensor(each, redaction, slices, hasher) for each in record.tensors]
    wire = record.wire if redaction.keeps_messages else ()
    return RecordedCall(call, tensors, items, wire)


def _redacted_tensor(
    row: TensorRow, redaction: Redaction, slices: Payload, hasher: Hasher
) -> TensorRow:
    """Return a tensor with less in it; *slices* is what stays of those that share a buffer."""
    payload = slices if row.form == SLICED else redaction.of_tensor(row.name)
    if row.form == UNTYPED:
        payload = untyped_payload(row.name, redaction.of_tensor, redaction.tensors)
    if payload == "full":
        return row
    digest = None
    if payload == "hash":
        digest = hasher(memoryview(row.data)) if row.data is not None else row.digest
    return changed(row, data=None, digest=digest)
