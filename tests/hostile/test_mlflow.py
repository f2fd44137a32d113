"""Hostile rows: no 5xx for a client's fault, bounded memory, and others wait for 0.5 s at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hostile.costly import Http, check_delay
from tests.hostile.process import Gateway, running
from tests.hostile.wire import post

pytestmark = pytest.mark.hostile

CSV, LINES, JSON = "text/csv", "application/jsonlines", "application/json"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with the default limits and models of rows."""
    with running("tests/hostile/mlflow.yaml") as gateway:
        message(b'{"inputs": [1]}', "tiny").send(gateway)
        yield gateway


def message(body: Any, model: str = "numbers", kind: str = JSON) -> Http:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Http(post(data, f"Content-Type: {kind}", path=f"/m/{model}/invocations"))


def repeated(item: bytes, count: int, form: bytes = b"inputs") -> bytes:
    return b'{"%b": [%b]}' % (form, b",".join([item] * count))


def table(columns: int, rows: int, value: Any = 0.5) -> dict[str, Any]:
    names = [str(at) for at in range(columns)]
    return {"dataframe_split": {"columns": names, "data": [[value] * columns] * rows}}


# What costs much, with the status that is expected.
COSTLY: dict[str, tuple[Callable[[], Http], str]] = {
    "numbers": (lambda: message(repeated(b"[0.5,1,2]", 1_000_000)), "413"),
    "nested_numbers": (lambda: message(repeated(b"[0.5,1,2]", 300_000)), "200"),
    "a_long_row": (lambda: message(b"[".join([b'{"inputs": [', repeated(b"1", 7_000_000)[12:-1]]) + b"]}"), "200"),
    "late_fraction": (lambda: message(b'{"inputs": [%b0.5]}' % (b"1," * 5_000_000), "tiny"), "400"),
    "late_overflow": (lambda: message(b'{"inputs": [%b128]}' % (b"1," * 5_000_000), "tiny"), "400"),
    "late_list": (lambda: message(b'{"inputs": [%b[1]]}' % (b"1," * 900_000), "tiny"), "400"),
    "late_text": (lambda: message(b'{"inputs": [%b"a"]}' % (b"1," * 5_000_000), "tiny"), "413"),
    "late_nan": (lambda: message(b'{"inputs": [[%bNaN]]}' % (b"1," * 900_000)), "200"),
    "many_nans": (lambda: message(repeated(b"NaN", 2_000_000)), "413"),
    "long_integers": (lambda: message(repeated(b"9" * 4000, 2000)), "400"),
    "texts": (lambda: message(repeated(b'"a"', 900_000), "bytes"), "200"),
    "too_many_texts": (lambda: message(repeated(b'"a"', 1_100_000), "bytes"), "413"),
    "a_long_text": (lambda: message(repeated(b'"%b"' % (b"a" * 12_000_000), 1), "bytes"), "200"),
    "objects": (lambda: message(repeated(b'{"INPUT0":[1]}', 900_000, b"instances")), "413"),
    "too_many_objects": (lambda: message(repeated(b'{"a":1}', 1_100_000, b"instances")), "413"),
    "keys_of_an_object": (
        lambda: message({"instances": [{f"k{at}": 1 for at in range(200_000)}]}),
        "413",
    ),
    "keys_of_the_body": (lambda: message({f"k{at}": 1 for at in range(200_000)}), "413"),
    "different_keys": (
        lambda: message({"dataframe_records": [{f"k{at}": 1} for at in range(9000)]}),
        "413",
    ),
    "a_wide_table": (lambda: message(table(9000, 80)), "200"),
    "a_long_table": (lambda: message(table(2, 300_000)), "200"),
    "a_table_of_texts": (lambda: message(table(9, 90_000, "a")), "400"),
    "deep": (lambda: message(b'{"inputs": %b%b}' % (b"[" * 100_000, b"]" * 100_000)), "413"),
    "deep_and_short": (lambda: message(b'{"inputs": %b%b}' % (b"[" * 900, b"]" * 900)), "413"),
    "csv": (lambda: message(b"a,b\n" + b"1,2\n" * 400_000, kind=CSV), "200"),
    "csv_of_commas": (lambda: message(b"," * 9_000_000, kind=CSV), "413"),
    "csv_of_quotes": (lambda: message(b'a\n"' + b'""' * 3_000_000 + b'"\n', kind=CSV), "400"),
    "lines": (lambda: message(b"[1,2]\n" * 300_000, kind=LINES), "200"),
    "wrong_lines": (lambda: message(b"[1,2]\n" * 300_000 + b"[\n", kind=LINES), "400"),
    "empty_lines": (lambda: message(b"\n" * 12_000_000, kind=LINES), "400"),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTLY)
def test_costly_rows_delay_no_other_client(gateway: Gateway, name: str) -> None:
    """Rows that cost much are refused early, or are read off the event loop."""
    check_delay(gateway, *COSTLY[name])


WRONG = [
    b"",
    b"null",
    b"[1]",
    b"{",
    b"\xff",
    b'{"inputs": [1e400]}',
    b'{"inputs": [-1e400]}',
    b'{"inputs": ["\\ud800"]}',
    b'{"inputs": [1], "inputs": [2]}',
    b'{"inputs": [1], "inp\\u0075ts": [2]}',
    b'{"instances": [{"a": 1, "a": 2}]}',
    b'{"inputs": {"a\\u0000": 1}}',
    b'{"inputs": [nan]}',
    b'{"inputs": {}}',
    b'{"inputs": {"": [1]}}',
    b'{"instances": [{}]}',
    b'{"instances": [null]}',
    b'{"instances": {"a": 1}}',
    b'{"dataframe_split": {}}',
    b'{"dataframe_split": {"columns": [], "data": []}}',
    b'{"dataframe_split": {"columns": ["a"], "data": {"a": 1}}}',
    b'{"dataframe_split": {"columns": [["a"]], "data": [[1]]}}',
    b'{"dataframe_split": {"columns": ["a"], "data": [[1]], "index": []}}',
    b'{"dataframe_records": [{}]}',
    b'{"dataframe_records": [[1]]}',
    b'{"inputs": [1], "params": {"a": {}}}',
    b'{"inputs": [{"b64": "AA=="}]}',
]
PADDING = b" " * 9000


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_wrong_rows_are_errors_of_the_client(gateway: Gateway, body: bytes) -> None:
    """A fault of the client has a status below 500, whichever parser reads it."""
    for model in ("add", "numbers", "bytes", "tiny"):
        for text in (body, body + PADDING):
            status = int(message(text, model).send(gateway).split()[0])
            assert 400 <= status < 500, (model, status)
