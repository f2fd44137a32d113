"""Output of the commands: data on standard output, notes and errors on standard error."""

import enum
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from gateway.ir.texts import json_without_hidden, printable, without_hidden

R = TypeVar("R")
V = TypeVar("V")

FAILED = 1
WRONG_USAGE = 2

_GAP: Final = "  "
# A last column that has less room is not wrapped.
_LEAST_ROOM: Final = 20


class OutputFormat(enum.Enum):
    """The format in which a command prints its data."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="Format of the data.")]


def print_text(text: str) -> None:
    """Print data; what a client wrote into it can neither control a terminal nor reverse a line."""
    typer.echo(without_hidden(text))


def in_colour(text: str, colour: str) -> str:
    """Return *text* in a colour that only terminals show; unchanged if NO_COLOR is set.

    Args:
        text: Part of what `print_text` prints.
        colour: A colour of typer, such as `red`.
    """
    return text if os.environ.get("NO_COLOR") else typer.style(text, fg=colour)


def write_bytes(path: Path | None, data: bytes) -> None:
    """Write *data* to a file, or to standard output for None; end the command on an error."""
    if path is None:
        sys.stdout.buffer.write(data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def clear_terminal() -> None:
    """Clear the terminal, if standard output is one; `print_text` would show the controls."""
    if sys.stdout.isatty():
        typer.echo("\x1b[H\x1b[2J", nl=False)


def print_json(value: Any) -> None:
    """Print data as one JSON document."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    typer.echo(json_without_hidden(text))


def print_note(text: str) -> None:
    """Print a note."""
    typer.echo(without_hidden(text), err=True)


def fail(message: str, status: int = FAILED) -> NoReturn:
    """Print an error and end the command."""
    typer.echo(without_hidden(f"gateway: {message}"), err=True)
    raise typer.Exit(status)


def parse_or_fail(parse: Callable[[V], R], value: V, flag: str = "") -> R:
    """Return the parsed value of a flag; end the command if it is malformed.

    Args:
        parse: Raises ValueError.
        value: The value of the flag.
        flag: What the error begins with; "" where its text names the flag.
    """
    try:
        return parse(value)
    except ValueError as error:
        fail(f"{flag}: {error}" if flag else str(error), WRONG_USAGE)


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> str:
    """Return *rows* as aligned columns of plain text, with escapes for what is not printable.

    A last column that is too wide for the terminal continues in its own column on the next line,
    from word to word: a terminal would break names anywhere.

    Args:
        head: Titles of the columns.
        rows: Cells, one per title in each row.
        right: Indexes of the columns that are aligned to the right.
    """
    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    room = _columns() - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    if widths[-1] > room >= _LEAST_ROOM and len(head) - 1 not in right:
        lines = [part for line in lines for part in _wrapped(line, room)]
    return "\n".join(
        _GAP.join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _columns() -> int:
    """Return the width of the terminal; a page that is read elsewhere has no width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _wrapped(line: Sequence[str], room: int) -> Iterator[Sequence[str]]:
    parts = textwrap.wrap(line[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
    yield (*line[:-1], parts[0])
    for part in parts[1:]:
        yield (*("" for _ in line[:-1]), part)
