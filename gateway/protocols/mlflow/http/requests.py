"""Reads the bodies of `/invocations`: four forms of JSON, CSV, and lines of JSON.

Source: docs/protocols/mlflow.md, "3. Requests" and "4. CSV and lines".
"""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.ir.context import Parameter, Parameters
from gateway.ir.errors import InvalidRequest, MalformedMessage
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.tensors.data import JsonLayout, UntypedRules
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.work import BUILT_TIMES, OBJECT_BYTE, charge, reserve
from gateway.wire.errors import UnsupportedContentType
from gateway.wire.http import Headers, media_type
from gateway.wire.rows.read import RowsDocument, RowsReader, is_list, read_any, read_rows_document
from gateway.wire.rows.tables import column_names, is_object, show, table_tensor

JSON, CSV, LINES = "application/json", "text/csv", "application/jsonlines"

_FORMS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs")
_LLM: Final = frozenset({"messages", "input", "prompt"})
_TYPES: Final = frozenset({JSON, CSV, LINES})
_UTF8: Final = frozenset({"utf-8", "utf8"})
_SHOWN: Final = 64
_PIECE_BYTES: Final = 1 << 16
# Work for a line of JSON, in items.
_LINE: Final = 8


def content_type(headers: Headers) -> str:
    """Return the type of a body, JSON where none is given.

    Raises:
        UnsupportedContentType: It is not read, or has another parameter than `charset=utf-8`.
    """
    given = headers.get("content-type")
    if given is None or given == JSON:
        return JSON
    kind, *parameters = [part.strip() for part in given.split(";")]
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() != "charset":
            raise UnsupportedContentType(
                f"content type {given[:_SHOWN]!r} has the parameter {key[:_SHOWN]!r}; expected "
                "charset=utf-8 or none: forms of MLflow 1 are not read"
            )
        if value.strip().strip('"').lower() not in _UTF8:
            raise UnsupportedContentType(
                f"content type {given[:_SHOWN]!r} has another charset; expected utf-8"
            )
    kind = kind.lower() or JSON
    if kind not in _TYPES:
        raise UnsupportedContentType(
            f"content type {given[:_SHOWN]!r} is not supported; expected one of "
            f"{', '.join(sorted(_TYPES))}"
        )
    return kind


def read_json(
    view: memoryview, limits: MessageLimits, rules: UntypedRules
) -> tuple[Parameters, tuple[Tensor, ...]]:
    """Return the parameters and the inputs of a body of JSON.

    Raises:
        MalformedMessage: It is no JSON object with exactly one of the four forms.
        InvalidRequest: A form is wrong.
        TooLarge: A limit is exceeded.
    """
    document = read_rows_document(view, "the body", limits, has_nonfinite=rules.has_nonfinite)
    form = _form(document)
    reader = RowsReader(document, limits, rules)
    read = {
        "dataframe_split": reader.split_table,
        "dataframe_records": reader.record_table,
        "instances": reader.rows,
        "inputs": reader.record_table if _has_objects(document.members) else reader.columns,
    }
    tensors = read[form](form)
    return _parameters(document, limits), tensors


def _has_objects(members: Mapping[str, Any]) -> bool:
    """Return whether `inputs` is a list of objects, which are the rows of a table."""
    found: Any = members.get("inputs")
    return is_list(found) and len(found) > 0 and is_object(found[0])


def _form(document: RowsDocument) -> str:
    found = [form for form in _FORMS if form in document.members]
    if len(found) == 1:
        return found[0]
    expected = f"expected exactly one of {', '.join(_FORMS)}"
    if found:
        raise MalformedMessage(f"the body has {' and '.join(found)}: {expected}")
    llm = sorted(_LLM.intersection(document.members))
    if llm:
        raise MalformedMessage(
            f"the body has {llm[0]!r}, a form for language models, which is not read: {expected}"
        )
    raise MalformedMessage(f"the body has none of the forms: {expected}")


def _parameters(document: RowsDocument, limits: MessageLimits) -> Parameters:
    found = document.plain("params")
    if found is None:
        return {}
    if type(found) is not dict:
        raise InvalidRequest(f"params is {show(found)}: expected an object")
    check_count("params", len(found), limits.parameters, "parameters")
    parameters: dict[str, Parameter] = {}
    for name, value in found.items():
        check_name("name of a parameter", name, limits.name_bytes, "name_bytes")
        if type(value) not in (str, int, float, bool):
            raise InvalidRequest(
                f"params.{name} is {show(value)}: expected a string, a number, true or false"
            )
        parameters[name] = value
    return parameters


def read_csv(
    view: memoryview, limits: MessageLimits, rules: UntypedRules, *, has_header: bool
) -> tuple[Tensor, ...]:
    """Return a table of CSV.

    Raises:
        MalformedMessage: It is not UTF-8, is empty, or has lines of different lengths.
        TooLarge: A limit is exceeded.
    """
    text = _text(view)
    values = text.count(",") + text.count("\n") + 1
    check_count("values in the CSV", values, limits.bytes_elements, "bytes_elements")
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise MalformedMessage(f"the body is not CSV: {error}") from error
    if not rows:
        raise MalformedMessage("the body is empty: expected lines of CSV")
    names = rows[0] if has_header else [str(at) for at in range(len(rows[0]))]
    columns = column_names(names, "the first line", limits)
    if has_header:
        rows = rows[1:]
    for at, row in enumerate(rows):
        if len(row) != len(columns):
            raise MalformedMessage(
                f"line {at + 1 + has_header} has {len(row)} values: expected {len(columns)}"
            )
    layout = JsonLayout.LINES
    return (table_tensor("line", columns, rows, layout, rules, view.nbytes),)


def read_lines(view: memoryview, limits: MessageLimits, rules: UntypedRules) -> tuple[Tensor, ...]:
    """Return the rows of lines of JSON, one instance each.

    Raises:
        MalformedMessage: A line is not JSON.
        InvalidRequest: There is no line.
        TooLarge: A limit is exceeded.
    """
    charge(view.nbytes * OBJECT_BYTE)
    # The list, which has a comma for each line, is made and read beside the lines.
    commas = bytes(view).count(b"\n")
    reserve(view.nbytes, 3 * view.nbytes + BUILT_TIMES * commas)
    text, count = bytearray(b'{"instances":['), 0
    for lines in lines_of(view):
        count += len(lines)
        check_count("lines", count, limits.bytes_elements, "bytes_elements")
        text += b",\n".join(lines) + b",\n"
    if count:
        del text[-2:]
    text += b"]}"
    rows = memoryview(text).toreadonly()  # a copy would be as long
    try:
        document = read_rows_document(rows, "the body", limits, has_nonfinite=rules.has_nonfinite)
    except MalformedMessage:
        _check_lines(view, limits, rules)
        raise
    if len(document.members["instances"]) != count:
        _check_lines(view, limits, rules)
    return RowsReader(document, limits, rules).rows("instances")


def lines_of(view: memoryview) -> Iterator[list[bytes]]:
    """Yield the lines that are not empty, some at a time: each of them is an object."""
    text, at = bytes(view), 0
    while at < len(text):
        end = text.find(b"\n", at + _PIECE_BYTES) + 1 or len(text)
        lines = [line for line in text[at:end].split(b"\n") if line.strip()]
        if lines:
            yield lines
        at = end


def _check_lines(view: memoryview, limits: MessageLimits, rules: UntypedRules) -> None:
    """Raise MalformedMessage for the first line that is not JSON."""
    at = 0
    for lines in lines_of(view):
        charge(len(lines) * _LINE)
        for line in lines:
            at += 1
            what = f"line {at}"
            read_any(memoryview(line), what, limits, has_nonfinite=rules.has_nonfinite)


def _text(view: memoryview) -> str:
    charge(view.nbytes * OBJECT_BYTE)
    try:
        return str(view, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"the body is not UTF-8: {error.reason}") from error


def is_only_csv(accept: str | None) -> bool:
    """Return whether a caller accepts CSV alone."""
    return accept is not None and _media_types(accept) == {CSV}


def accepts_lines(accept: str | None) -> bool:
    """Return whether the replies of a stream may be lines: not for a caller of JSON alone."""
    return accept is None or _media_types(accept) != {JSON}


def wants_lines(accept: str | None) -> bool:
    """Return whether a caller names lines of JSON."""
    return accept is not None and LINES in _media_types(accept)


def _media_types(accept: str) -> set[str]:
    return set(map(media_type, accept.split(",")))
