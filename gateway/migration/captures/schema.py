"""The file format of a segment: tables, version, and the checks of a file from somebody else."""

from typing import Final

APPLICATION_ID: Final = 0x54475743
VERSION: Final = 1

TABLES: Final = (
    (
        "CREATE TABLE calls (seq INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, "
        "took_us INTEGER NOT NULL, request_id TEXT NOT NULL, kind TEXT NOT NULL, "
        "client TEXT NOT NULL, agent TEXT NOT NULL, protocol TEXT NOT NULL, needs TEXT NOT NULL, "
        "route TEXT NOT NULL, target TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL, "
        "sequence TEXT, parameters TEXT, details TEXT NOT NULL, code TEXT NOT NULL, "
        "error TEXT NOT NULL, crc32 INTEGER NOT NULL)"
    ),
    (
        "CREATE TABLE tensors (call INTEGER NOT NULL, side TEXT NOT NULL, item INTEGER NOT NULL, "
        "place INTEGER NOT NULL, name TEXT NOT NULL, datatype TEXT, shape TEXT, "
        "form TEXT NOT NULL, declared INTEGER, size INTEGER NOT NULL, digest BLOB, data BLOB)"
    ),
    (
        "CREATE TABLE items (call INTEGER NOT NULL, item INTEGER NOT NULL, at_us INTEGER NOT NULL, "
        "code TEXT NOT NULL, parameters TEXT)"
    ),
    (
        "CREATE TABLE wire (call INTEGER NOT NULL, side TEXT NOT NULL, place INTEGER NOT NULL, "
        "head TEXT NOT NULL, body BLOB NOT NULL)"
    ),
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX tensors_of_call ON tensors (call)",
    "CREATE INDEX items_of_call ON items (call)",
    "CREATE INDEX wire_of_call ON wire (call)",
    *(
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'a capture is append-only'); END"
        for table in ("calls", "tensors", "items", "wire", "meta")
        for verb in ("UPDATE", "DELETE")
    ),
)
"""All of the schema. A file with anything else is refused."""

CALL_COLUMNS: Final = (
    "at_us, took_us, request_id, kind, client, agent, protocol, needs, route, target, model, "
    "version, sequence, parameters, details, code, error"
)
TENSOR_COLUMNS: Final = (
    "side, item, place, name, datatype, shape, form, declared, size, digest, data"
)
ITEM_COLUMNS: Final = "item, at_us, code, parameters"
WIRE_COLUMNS: Final = "side, place, head, body"

MAX_VALUE_BYTES: Final = 256 << 20
"""Longest text or element data that is read from a file."""
