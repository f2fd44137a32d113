"""What the configuration declares of a model: `models.NAME.protocols.seldon`.

Source: docs/protocols/seldon.md, "8. Configuration".
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.ir.values.untyped import RowsForm
from gateway.wire.options import (
    OptionError,
    Reader,
    flag,
    list_of,
    mapping,
    one_of,
    read_section,
    text,
    wrong,
)

TEXT, INPUTS = "text", "inputs"
_COLUMN: Final = re.compile("[0-9]{1,6}")


class SeldonForm(RowsForm, frozen=True, kw_only=True):
    """What the configuration declares of a model.

    Attributes:
        json: What `jsonData` is: the text of an input of BYTES, or an object of inputs; "" where it
            is refused. From a server it is the same of outputs.
        output: The output that answers; "" for the only one.
        json_outputs: All outputs answer, as members of `jsonData`.
        names: Names of the columns of the answer; empty for numbers of columns.
    """

    json: str = ""
    output: str = ""
    json_outputs: bool = False
    names: tuple[str, ...] = ()


NO_DECLARATION: Final = SeldonForm()
_JSON_TEXT: Final = SeldonForm(json=TEXT)


def reply_form(declared: Mapping[str, Any], model: ModelRef | None) -> SeldonForm:
    """Return what is declared of the answers of a server; JSON is text, unless it is tensors."""
    found = declared.get("" if model is None else model.name)
    return found if isinstance(found, SeldonForm) and found.json == INPUTS else _JSON_TEXT


def read_declaration(value: Mapping[str, Any], _read_file: Callable[[str], str], /) -> SeldonForm:
    """Return the declaration *value*, typed.

    Raises:
        OptionError: A key does not exist, or a value is wrong.
    """
    found = read_section("seldon", _READERS, value)
    if found.get("output") and found.get("json_outputs"):
        raise OptionError(
            "json_outputs stands beside output: expected only one of them", ("json_outputs",)
        )
    return SeldonForm(
        splits=found.get("columns", {}),
        json=found.get("json", ""),
        output=found.get("output", ""),
        json_outputs=found.get("json_outputs", False),
        names=found.get("names", ()),
    )


def _column(key: str, value: Any) -> int:
    found = int(value) if isinstance(value, str) and _COLUMN.fullmatch(value) else value
    if type(found) is not int or found < 0:
        raise wrong(key, value, "the number of a column, from 0 on")
    return found


def _columns(key: str, value: Any) -> dict[str, tuple[int, ...]]:
    read = list_of(_column)
    found = {name: read(f"{key}.{name}", each) for name, each in mapping(key, value).items()}
    every = [column for columns in found.values() for column in columns]
    if not every or not all(found.values()) or sorted(every) != list(range(len(every))):
        raise wrong(key, value, "each column from 0 on once, and some for each input")
    return found


_READERS: Final[Mapping[str, Reader]] = {
    "columns": _columns,
    "json": one_of(TEXT, INPUTS),
    "output": text,
    "json_outputs": flag,
    "names": list_of(text),
}
