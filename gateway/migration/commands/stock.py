"""The command `stock`: who calls what, as a running gateway or its state directory tells."""

import enum
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin import asks_admin, get_document
from gateway.cli.output import (
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    print_json,
    print_text,
)
from gateway.migration.callers.inventory import merged_rows

_SINCE: Final = re.compile(r"([0-9]+)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SUMMED: Final = ("calls", "per_min", "errors", "forwarded", "refused")
_COLUMNS: Final = (
    "client",
    "agent",
    "protocol",
    "model",
    "inputs or path",
    "calls",
    "per_min",
    "errors",
    "forwarded",
    "refused",
    "p99_ms",
    "last_seen",
)


class Group(enum.Enum):
    """What the rows are summed by."""

    CLIENT = "client"
    AGENT = "agent"
    PROTOCOL = "protocol"
    MODEL = "model"


@asks_admin("[ADDR|DIR]", "Admin address, or the state directory.")
def stock(
    admin: str,
    since: Annotated[
        str | None, typer.Option(metavar="30d", help="Only callers seen in this time.")
    ] = None,
    by: Annotated[
        Group | None,
        typer.Option(help="Sum the rows; a client is its name, or its address without one."),
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show who still calls what: clients, protocols, models, inputs or path, rates and errors.

    Forwarded calls went to a server unread, and refused ones are errors of the gateway itself.

    The counts are at most 10 s old. Exit status: 0 success, 1 unreachable or off, 2 usage error.

    Example: gateway stock --by client
    """
    rows = stock_rows(admin)
    now = datetime.now(UTC)
    if since is not None:
        earliest = now - _duration(since)
        rows = [row for row in rows if _seen(row) >= earliest]
    if by is not None:
        _show_sums(rows, by, output)
        return
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    cells = [
        (
            row.get("client_name") or row["client"] or "-",
            row["agent"] or "-",
            row["protocol"] or "-",
            row["model"] or "-",
            row["inputs"] or row.get("path") or "-",
            *_figures(row, now),
        )
        for row in rows
    ]
    print_text(format_table(_COLUMNS, cells, right=range(5, 11)))


def _show_sums(rows: Sequence[Mapping[str, Any]], by: Group, output: OutputFormat) -> None:
    """Print the calls of each client, agent, protocol or model; the most calls come first."""
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = str(row[by.value] or "-")
        if by is Group.CLIENT:
            name = str(row.get("client_name") or name)
        found = sums.setdefault(name, {by.value: name, **dict.fromkeys(_SUMMED, 0)})
        for key in _SUMMED:
            found[key] = round(found[key] + row.get(key, 0), 3)
        found["p99_ms"] = max(found.get("p99_ms", 0.0), row["p99_ms"])
        found["last_seen"] = max(found.get("last_seen", ""), row["last_seen"])
    listed = sorted(sums.values(), key=lambda each: -each["calls"])
    if output is OutputFormat.JSON:
        print_json(listed)
        return
    now = datetime.now(UTC)
    head = (by.value, *_SUMMED, "p99_ms", "last_seen")
    cells = [(row[by.value], *_figures(row, now)) for row in listed]
    print_text(format_table(head, cells, right=range(1, 7)))


def _figures(row: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    """Return calls, rate, errors, latency and the last call of a row, as text."""
    return (
        str(row["calls"]),
        f"{row['per_min']:.1f}",
        f"{row['errors'] / max(row['calls'], 1):.1%}",
        str(row.get("forwarded", 0)),
        str(row.get("refused", 0)),
        f"{row['p99_ms']:.1f}",
        _ago(now - _seen(row)),
    )


def stock_rows(source: str) -> list[dict[str, Any]]:
    """Return the rows of a gateway or a state directory; end the command if there is none."""
    directory = Path(source)
    if directory.is_dir():
        return [row.document() for row in merged_rows(directory)]
    rows: list[dict[str, Any]] | None = get_document(source, "/stock").get("rows")
    if rows is None:
        fail(f"no stock at {source}; expected the address of a gateway's `admin`, or DIR")
    return rows


def _seen(row: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(row["last_seen"])


def _duration(text: str) -> timedelta:
    found = _SINCE.fullmatch(text)
    if found is None:
        fail(f"--since is {text!r}; expected a number and s, m, h or d, as in 30d", WRONG_USAGE)
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _ago(age: timedelta) -> str:
    seconds = max(0, int(age.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"
