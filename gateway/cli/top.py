"""The command `top`: the traffic of a running gateway, as a view that renews itself."""

import enum
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
import typer

from gateway.cli.admin import asks_admin, get_metrics
from gateway.cli.output import OutputFormat, OutputOption, fail, format_table, print_text
from gateway.cli.traffic import Reading, Row, Traffic, traffic_between

_CLEAR: Final = "\x1b[H\x1b[2J"
_SECTIONS: Final = 4
_MIN_ROWS: Final = 3


class Order(enum.Enum):
    """What rows are sorted by."""

    LOAD = "load"
    ERRORS = "errors"
    LATENCY = "latency"


@asks_admin()
def top(
    admin: str,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two views.")
    ] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="End after this many views; 0 for none.")] = 0,
    sort: Annotated[Order, typer.Option(help="The column that rows are sorted by.")] = Order.LOAD,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show rates, failures and latencies of routes, targets, models and upstreams, until Ctrl-C.

    Each view is about the time since the one before. With `--output json` it is one line.
    Exit status: 0 success, 1 unreachable, 2 usage error.
    """
    try:
        _show(admin, interval, count, sort.value, output)
    except KeyboardInterrupt:
        return


def _show(address: str, interval_s: float, count: int, order: str, output: OutputFormat) -> None:
    before, shown = _read(address), 0
    while not count or shown < count:
        time.sleep(interval_s)
        after = _read(address)
        traffic = traffic_between(before, after, order)
        before, shown = after, shown + 1
        if output is OutputFormat.JSON:
            print_text(msgspec.json.encode(traffic).decode())
            continue
        is_terminal = sys.stdout.isatty()
        rows = shutil.get_terminal_size().lines if is_terminal else None
        print_text((_CLEAR if is_terminal else "") + "\n".join(traffic_lines(traffic, rows)))


def _read(address: str) -> Reading:
    try:
        return Reading.of(get_metrics(address), time.monotonic())
    except ValueError as error:
        fail(f"no metrics of a gateway at {address}: {error}; expected HOST:PORT of its `admin`")


def traffic_lines(traffic: Traffic, height: int | None = None) -> Iterator[str]:
    """Yield the lines of a view.

    Args:
        traffic: What to show.
        height: Lines of the terminal; rows that do not fit are counted. None shows all.
    """
    yield (
        f"{traffic.per_s:.1f} calls/s, {traffic.rejected_per_s:.1f} rejected/s, "
        f"{traffic.connections:.0f} connections, in the last {traffic.seconds:.1f} s"
    )
    # Each section has an empty line, a head, and a line for what does not fit.
    limit = None if height is None else max(_MIN_ROWS, (height - 2) // _SECTIONS - 3)
    yield from _section(
        ("route", "calls/s", "failed", "p50 ms", "p99 ms", "in flight", "queued"),
        traffic.routes,
        limit,
    )
    yield from _section(
        ("route", "target", "calls/s", "failed", "p50 ms", "p99 ms"), traffic.targets, limit
    )
    yield from _section(
        ("model", "calls/s", "failed", "upstream ms", "queue ms", "gateway ms"),
        traffic.models,
        limit,
    )
    yield from _section(
        ("upstream", "endpoint", "calls/s", "failed", "mean ms", "ready"), traffic.endpoints, limit
    )


def _section(head: tuple[str, ...], rows: Sequence[Row], limit: int | None) -> Iterator[str]:
    if not rows:
        return
    shown = rows if limit is None else rows[:limit]
    yield ""
    names = len(rows[0].names)
    yield format_table(head, [_cells(row) for row in shown], right=range(names, len(head)))
    if len(shown) < len(rows):
        yield f"and {len(rows) - len(shown)} more"


def _cells(row: Row) -> tuple[str, ...]:
    has_percentiles = not row.mean_ms
    percentiles = [row.p50_ms, row.p99_ms] if has_percentiles else row.mean_ms
    return (
        *row.names,
        f"{row.per_s:.1f}",
        "-" if row.failed is None else f"{row.failed:.1%}",
        *("-" if each is None else f"{each:.2f}" for each in percentiles),
        *(f"{each:.0f}" for each in row.pending),
        *(() if row.is_ready is None else ("yes" if row.is_ready else "no",)),
    )
