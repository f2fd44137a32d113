"""What verbs print: data on standard output, remarks and errors on standard error."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

FAILED = 1
WRONG_USAGE = 2


class OutputFormat(enum.Enum):
    """The form in which a verb prints its data."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="Form of the data.")]


def say(text: str) -> None:
    """Print data."""
    typer.echo(text)


def say_json(value: Any) -> None:
    """Print data as one JSON document."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def note(text: str) -> None:
    """Print a remark."""
    typer.echo(text, err=True)


def fail(message: str, status: int = FAILED) -> NoReturn:
    """Print an error and end the command."""
    typer.echo(f"gateway: {message}", err=True)
    raise typer.Exit(status)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return *rows* under *head* as aligned columns of plain text.

    Args:
        head: Titles of the columns.
        rows: Cells, as many to a row as there are titles.
        right: Columns of numbers, aligned to the right.
    """
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
