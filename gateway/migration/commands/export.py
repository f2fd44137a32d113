"""Writes a capture in the formats of other programs, for `gateway capture export`."""

import json
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.cli.calling.tensors import json_of
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy
from gateway.shadow.records.records import (
    INPUT,
    OLD,
    REFUSED,
    RecordedCall,
    TensorRow,
    WireRow,
    tensors_of,
)

Calls = Iterator[RecordedCall]
Omissions = Callable[[RecordedCall, str], None]
"""Called for each call that the format cannot contain, with the reason."""


def call_document(record: RecordedCall) -> dict[str, Any]:
    """Return a call as JSON values; elements only where they are recorded."""
    call = record.call
    details = json.loads(call.details)
    return {
        "id": record.id,
        "at": datetime.fromtimestamp(call.at_us / 1e6, UTC).isoformat(),
        "took_us": call.took_us,
        "request_id": call.request_id,
        "client_id": str(details.get("id", "")),
        "kind": call.kind,
        "path": str(details.get("path", "")),
        "client": call.client,
        "agent": call.agent,
        "protocol": call.protocol,
        "route": call.route,
        "target": call.target,
        "model": call.model,
        "version": call.version,
        "sequence": None if call.sequence is None else json.loads(call.sequence),
        "parameters": None if call.parameters is None else _json_values(call.parameters),
        "code": call.code,
        "error": call.error,
        "refused": REFUSED if record.is_refused else "",
        "messages": [_message_document(each) for each in record.wire if record.is_forwarded],
        **{
            key: details[key]
            for key in ("client_name", "headers", "batch_size", "outputs")
            if key in details
        },
        "inputs": [_tensor_document(each) for each in record.tensors if each.side == INPUT],
        "replies": [
            {
                "at_us": item.at_us,
                "code": item.code,
                "outputs": [
                    _tensor_document(each)
                    for each in record.tensors
                    if each.side == OLD and each.item == item.item
                ],
            }
            for item in record.items
        ],
    }


def _message_document(row: WireRow) -> dict[str, Any]:
    return {"side": row.side, **json.loads(row.head), "body": row.body.decode(errors="replace")}


def _json_values(text: str) -> Any:
    """Return parameters; NaN and infinities become texts, as in tensors."""
    return json.loads(text, parse_constant=str)


def _tensor_document(row: TensorRow) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": row.name,
        "datatype": row.datatype,
        "shape": None if row.shape is None else json.loads(row.shape),
        "bytes": row.size,
    }
    if row.digest is not None:
        document["hmac_sha256"] = row.digest.hex()
    if row.data is not None and row.datatype is not None and row.shape is not None:
        document["data"] = json_of(next(iter(tensors_of([row]))))["data"]
    elif row.data is not None:
        document["hex"] = row.data.hex()
    return document


def write_jsonl(calls: Calls, path: Path, _omissions: Omissions) -> int:
    """Write one JSON object for each call; return their number."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in calls:
            file.write(json.dumps(call_document(record), allow_nan=False) + "\n")
            count += 1
    return count


def write_npz(calls: Calls, path: Path, omissions: Omissions) -> int:
    """Write arrays named `ID/input/NAME` and `ID/output/REPLY/NAME`; return the number of calls.

    BYTES become arrays of byte strings, which lose zero bytes at their end.
    """
    count = 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for record in calls:
            reason = _missing(record, outputs=True)
            if reason:
                omissions(record, reason)
                continue
            for name, array in _arrays(record):
                buffer = BytesIO()
                np.save(buffer, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", buffer.getvalue())
            count += 1
    return count


def _arrays(record: RecordedCall) -> Iterator[tuple[str, Any]]:
    for row in record.tensors:
        tensor = next(iter(tensors_of([row])))
        kind = "input" if row.side == INPUT else f"output/{row.item}"
        yield f"{record.id}/{kind}/{row.name or f'#{row.place}'}", array_of(tensor)


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; BYTES become byte strings."""
    if tensor.datatype is not Datatype.BYTES:
        return as_numpy(tensor)
    array = np.array([bytes(each) for each in as_items(tensor)], dtype=np.bytes_)
    return array.reshape(tensor.shape or ())


def write_perf_analyzer(calls: Calls, path: Path, omissions: Omissions) -> int:
    """Write the input data of Triton's Performance Analyzer; return the number of calls.

    Source: Performance Analyzer documentation, "Real Input Data".
    """
    data: list[dict[str, Any]] = []
    expected: list[dict[str, Any]] = []
    for record in calls:
        reason = _missing(record, outputs=False)
        if reason or len({each.name for each in record.tensors if each.side == INPUT}) == 0:
            omissions(record, reason or "no inputs")
            continue
        data.append(_perf_tensors(record, INPUT, 0))
        expected.append(_perf_tensors(record, OLD, 0))
    document: dict[str, Any] = {"data": data}
    if all(expected):
        document["validation_data"] = expected
    path.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    return len(data)


def _perf_tensors(record: RecordedCall, side: str, item: int) -> dict[str, Any]:
    tensors = {}
    for row in record.tensors:
        if row.side != side or row.item != item or row.data is None:
            continue
        document = json_of(next(iter(tensors_of([row]))))
        flat = np.array(document["data"], dtype=object).reshape(-1).tolist()
        tensors[row.name] = {"content": flat, "shape": document["shape"]}
    return tensors


def write_parquet(calls: Calls, path: Path, _omissions: Omissions) -> int:
    """Write a row for each tensor, with the columns of its call; return the number of calls.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow as pa  # noqa: PLC0415  # an extra
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = {"int": pa.int64(), "str": pa.string(), "bytes": pa.binary()}
    schema = pa.schema([(name, types[kind]) for name, kind in _COLUMNS.items()])
    count = held = 0
    rows: list[dict[str, Any]] = []
    with pq.ParquetWriter(path, schema) as writer:
        for record in calls:
            count += 1
            rows += _table_rows(record)
            held += record.nbytes
            if held >= _GROUP_BYTES or len(rows) >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows, held = [], 0
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return count


def _table_rows(record: RecordedCall) -> Iterator[dict[str, Any]]:
    call = {name: getattr(record.call, name) for name in _COLUMNS if hasattr(record.call, name)}
    for row in record.tensors:
        tensor = {name: getattr(row, name) for name in _COLUMNS if hasattr(row, name)}
        yield {"call": record.id, **call, **tensor}


_GROUP_ROWS: Final = 10_000
_GROUP_BYTES: Final = 64 << 20
"""Elements that are held in memory before a row group is written."""

_COLUMNS: Final = {
    "call": "str",
    "at_us": "int",
    "took_us": "int",
    "request_id": "str",
    "protocol": "str",
    "model": "str",
    "version": "str",
    "code": "str",
    "side": "str",
    "item": "int",
    "place": "int",
    "name": "str",
    "datatype": "str",
    "shape": "str",
    "size": "int",
    "digest": "bytes",
    "data": "bytes",
}

WRITERS: Final = {
    "jsonl": write_jsonl,
    "npz": write_npz,
    "perf-analyzer": write_perf_analyzer,
    "parquet": write_parquet,
}


def _missing(record: RecordedCall, *, outputs: bool) -> str:
    """Return why the elements of a call are unknown; "" if they are known."""
    rows = [each for each in record.tensors if outputs or each.side == INPUT]
    if any(each.data is None for each in rows):
        return "payload not recorded"
    if any(each.datatype is None or each.shape is None for each in rows):
        return "its client sends no datatypes or shapes"
    try:
        for row in rows:
            next(iter(tensors_of([row])))
    except (GatewayError, ValueError) as error:
        return str(error)
    return ""
