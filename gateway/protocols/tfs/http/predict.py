"""Predictions as JSON: rows and columns of a request, and of the reply to it.

`wire/rows/read.py` reads values, `wire/rows/write.py` writes them.

Source: docs/protocols/tensorflow-serving.md, "9. Rows and columns".
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gateway.ir.context import Parameter, Parameters
from gateway.ir.errors import InvalidOutput, InvalidRequest, Unsupported
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.tensors.data import UntypedRules
from gateway.ir.tensors.tensor import Tensor
from gateway.protocols.tfs.declarations import B64
from gateway.protocols.tfs.options import NULL, OUTPUTS, PREDICTIONS, REFUSE, WORDS, TfsOptions
from gateway.wire.rows.read import RowsDocument, RowsReader
from gateway.wire.rows.read_short import short_columns, short_rows
from gateway.wire.rows.write import NonfiniteStyle, RowStyle, columns_json, rows_json, value_json

_ROWS, _COLUMNS = "instances", "inputs"
_SUFFIX: Final = "_bytes"
_NONFINITE: Final = {
    WORDS: NonfiniteStyle.WORDS,
    NULL: NonfiniteStyle.NULL,
    REFUSE: NonfiniteStyle.REFUSE,
}


class RowRules(NamedTuple):
    """What values a listener reads.

    Attributes:
        rows: What values of `instances` are.
        columns: What values of `inputs` are.
    """

    rows: UntypedRules
    columns: UntypedRules


def row_rules(options: TfsOptions, limits: MessageLimits) -> RowRules:
    """Return what values a listener reads: KServe has no surplus column, and 1.0 is an integer."""
    is_tensorflow = not options.is_kserve

    def rules(*, drops_surplus: bool) -> UntypedRules:
        return UntypedRules(
            protocol="tfs",
            rounds_to_infinity=is_tensorflow,
            has_whole_floats=not is_tensorflow,
            drops_surplus=drops_surplus,
            bytes_element_size=limits.bytes_element_size,
        )

    return RowRules(rules(drops_surplus=False), rules(drops_surplus=is_tensorflow))


def read_tensors(
    document: RowsDocument, limits: MessageLimits, rules: RowRules
) -> tuple[tuple[Tensor, ...], bool]:
    """Return the tensors of a request without datatypes, and whether they are rows.

    Raises:
        InvalidRequest: There are no rows and no columns, both, or others than a model can have.
        TooLarge: A limit is exceeded.
    """
    members = document.members
    if _ROWS in members and _COLUMNS in members:
        raise InvalidRequest("the body has instances and inputs: expected one of them")
    if _ROWS in members:
        short = short_rows(document, _ROWS, limits, rules.rows)
        if short is not None:
            return short, True
        return RowsReader(document, limits, rules.rows).rows(_ROWS), True
    if _COLUMNS in members:
        short = short_columns(document, _COLUMNS, limits, rules.columns)
        if short is not None:
            return short, False
        return RowsReader(document, limits, rules.columns).columns(_COLUMNS), False
    raise InvalidRequest("the body has neither instances nor inputs: expected one of them")


def read_signature(document: RowsDocument) -> str:
    """Return the name of the signature; "" for none.

    Raises:
        InvalidRequest: It is no text.
    """
    if "signature_name" not in document.members:
        return ""
    found = document.plain("signature_name")
    if not isinstance(found, str):
        raise InvalidRequest(
            f"signature_name is {type(found).__name__}: expected the name of a signature"
        )
    return found


def read_parameters(document: RowsDocument, limits: MessageLimits) -> Parameters:
    """Return the members of `parameters`, which are parameters of the call.

    Raises:
        InvalidRequest: It is no object, or a member is no scalar.
        TooLarge: There are too many.
    """
    found = document.plain("parameters")
    if found is None:
        return {}
    if type(found) is not dict:
        raise InvalidRequest(f"parameters is {type(found).__name__}: expected an object or null")
    check_count("parameters", len(found), limits.parameters, "parameters")
    read: dict[str, Parameter] = {}
    for name, value in found.items():
        if not isinstance(value, bool | int | float | str):
            kind = "null" if value is None else "a list or an object"
            raise InvalidRequest(
                f"parameters.{name[:64]} is {kind}: expected true, false, a number or a text"
            )
        read[name] = value
    return read


def only_rows(options: TfsOptions) -> bool:
    """Return whether requests with columns have replies with rows, too."""
    return (options.columns or (PREDICTIONS if options.is_kserve else OUTPUTS)) == PREDICTIONS


def reply_style(options: TfsOptions, bytes_form: str) -> RowStyle:
    """Return how a listener writes elements, those of BYTES as a model declares it."""
    is_kserve = options.is_kserve
    nonfinite = options.nonfinite or (NULL if is_kserve else WORDS)
    return RowStyle(
        nonfinite=_NONFINITE[nonfinite],
        has_b64=is_kserve or bytes_form == B64,
        b64_suffix="" if is_kserve else _SUFFIX,
    )


def write_reply(
    outputs: Sequence[Tensor],
    has_rows: bool,  # a keyword costs more
    options: TfsOptions,
    style: RowStyle,
) -> bytes:
    """Return the JSON of a prediction.

    Args:
        outputs: With the names of clients.
        has_rows: The reply has rows; otherwise it has columns.
        options: The options of the listener.
        style: How elements are written.

    Raises:
        InvalidRequest, Unsupported: The outputs cannot be rows.
        Unsupported: An element has no form in JSON.
    """
    try:
        if has_rows:
            return b'{"predictions":%b}' % rows_json(outputs, style)
        one = value_json(outputs[0], style) if len(outputs) == 1 else columns_json(outputs, style)
    except InvalidOutput as error:
        if has_rows:
            _check_rows(outputs, options)
        raise Unsupported(error.message) from error
    return b'{"outputs":%b}' % one


def _check_rows(outputs: Sequence[Tensor], options: TfsOptions) -> None:
    """Refuse outputs that are not one item for each row.

    TensorFlow Serving says that the request is wrong, KServe that there is no such reply.
    """
    counts = {each.shape[0] if each.shape else None for each in outputs}
    if None not in counts and len(counts) <= 1:
        return
    failure: Any = Unsupported if options.is_kserve else InvalidRequest
    shapes = ", ".join([f"{each.name!r} {list(each.shape or ())}" for each in outputs[:8]])
    raise failure(
        f"the outputs have the shapes {shapes}: expected the same first axis, because the reply "
        "has one item for each row; a request with inputs has a reply in columns"
    )
