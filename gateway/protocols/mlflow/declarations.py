"""What the configuration declares of a model: `models.NAME.protocols.mlflow`.

Source: docs/protocols/mlflow.md, "8. Configuration".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.ir.values.untyped import RowsForm
from gateway.wire.options import OptionError, Reader, list_of, one_of, read_section, text, wrong

EACH, MATRIX = "each", "matrix"


def read_declaration(value: Mapping[str, Any], _read_file: Callable[[str], str], /) -> RowsForm:
    """Return the declaration *value*, typed.

    Raises:
        OptionError: A key does not exist, or a value is wrong.
    """
    found = read_section("mlflow", _READERS, value)
    columns = found.get("columns")
    names = found.get("column_names", ())
    if names and columns == EACH:
        raise OptionError(
            f"column_names stands beside columns: {EACH}, where columns have the names of inputs; "
            f"expected columns: {MATRIX}",
            ("column_names",),
        )
    return RowsForm(
        is_matrix=None if columns is None else columns == MATRIX,
        columns=names,
        binary=frozenset(found.get("binary", ())),
    )


def _names(key: str, value: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = list_of(text)(key, value)
    if not names or "" in names or len(set(names)) < len(names):
        raise wrong(key, value, "a list of names, each of them once")
    return names


_READERS: Final[Mapping[str, Reader]] = {
    "columns": one_of(EACH, MATRIX),
    "column_names": _names,
    "binary": _names,
}
