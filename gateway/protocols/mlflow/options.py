"""The options of a listener or an upstream, and what is declared of a model.

Source: docs/protocols/mlflow.md, "8. Configuration".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.ir.values.untyped import RowsForm
from gateway.wire.options import (
    OptionError,
    Reader,
    flag,
    list_of,
    matching,
    model,
    one_of,
    read_section,
    read_values,
    text,
    wrong,
)

IGNORE, REFUSE = "ignore", "refuse"
WORDS, NAN = "words", "nan"
VALUE, OBJECT = "value", "object"
EACH, MATRIX = "each", "matrix"
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowOptions:
    """The options, typed.

    Attributes:
        default_model: Listener: the model of `/invocations`; None for that of the listener.
        prefix: Listener: `PREFIX/MODEL/invocations` names a model; "" for no such paths.
        surplus_inputs: Listener: whether inputs that the model lacks are ignored or refused.
        nonfinite: Listener: whether NaN and infinities are words, or are refused.
        nulls: Listener: whether `null` is NaN for floats, or is refused.
        csv_header: Listener: the first line of CSV has the names of columns.
        version: Listener: what `/version` says.
        multi_model: Listener: only false, because models are not loaded by a client's word.
        single_input: Upstream: how the only input of a model is sent.
    """

    default_model: ModelRef | None = None
    prefix: str = ""
    surplus_inputs: str = IGNORE
    nonfinite: str = WORDS
    nulls: str = NAN
    csv_header: bool = True
    version: str = "3.17.2"
    multi_model: bool = False
    single_input: str = VALUE

    @property
    def changes_messages(self) -> bool:
        """Whether an option changes what messages say, which no message that passes has."""
        return REFUSE in (self.surplus_inputs, self.nonfinite) or not self.csv_header


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_options(options)
    return options


def read_options(options: Mapping[str, Any]) -> MlflowOptions:
    """Return *options*, typed.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return MlflowOptions(**read_values("mlflow", _READERS, options))


def _not_built(key: str, value: Any) -> bool:
    if flag(key, value):
        raise wrong(key, value, "false, because models are not loaded by a client's word")
    return False


_READERS: Final[Mapping[str, Reader]] = {
    "default_model": model,
    "prefix": matching(_PREFIX, "a path that begins with '/' and does not end with it"),
    "surplus_inputs": one_of(IGNORE, REFUSE),
    "nonfinite": one_of(WORDS, REFUSE),
    "nulls": one_of(REFUSE, NAN),
    "csv_header": flag,
    "version": text,
    "multi_model": _not_built,
    "single_input": one_of(VALUE, OBJECT),
}


def read_declaration(value: Mapping[str, Any], _read_file: Callable[[str], str], /) -> RowsForm:
    """Return what `models.NAME.protocols.mlflow` declares, typed.

    Raises:
        OptionError: A key does not exist, or a value is wrong.
    """
    found = read_section("mlflow", _DECLARED, value)
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


_DECLARED: Final[Mapping[str, Reader]] = {
    "columns": one_of(EACH, MATRIX),
    "column_names": _names,
    "binary": _names,
}
