"""The command `top`: the traffic of a running gateway, as a view that renews itself."""

from __future__ import annotations

import enum
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import Struct

from gateway.cli.admin import asks_admin, get_traffic
from gateway.cli.output import (
    OutputFormat,
    OutputOption,
    clear_terminal,
    format_table,
    print_text,
)

_SECTIONS: Final = 4
_MIN_ROWS: Final = 3
# Rates of less than a second say little.
_FIRST_S: Final = 1.0


class Order(enum.Enum):
    """What rows are sorted by."""

    LOAD = "load"
    ERRORS = "errors"
    LATENCY = "latency"


class Row(Struct, frozen=True):
    """One route, target, model or endpoint.

    Attributes:
        names: What the row is about, by column.
        per_s: Calls per second.
        failed: Share of them that failed; None without calls.
        p50_ms: Median of the duration, interpolated within its bucket; None without calls.
        p99_ms: The 99th percentile of the same.
        mean_ms: Mean time upstream, in queues and in the gateway; of attempts only the first.
        pending: Calls in flight, and calls in the queue.
        is_ready: Whether an endpoint is ready; None for other rows.
    """

    names: tuple[str, ...]
    per_s: float
    failed: float | None
    p50_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: tuple[float, ...] = ()
    pending: tuple[float, ...] = ()
    is_ready: bool | None = None


class Traffic(Struct, frozen=True):
    """What happened within a window of time; rows with the highest rate come first.

    Attributes:
        seconds: Length of the window.
        per_s: Calls per second.
        rejected_per_s: Requests per second that were rejected before routing.
        connections: Open connections of clients.
        routes: By route.
        targets: By route and target.
        models: By model.
        endpoints: By upstream and endpoint.
    """

    seconds: float
    per_s: float
    rejected_per_s: float
    connections: float
    routes: list[Row]
    targets: list[Row]
    models: list[Row]
    endpoints: list[Row]


_ORDERS: Final[Mapping[Order, Callable[[Row], float]]] = {
    Order.LOAD: lambda row: row.per_s,
    Order.ERRORS: lambda row: row.failed or 0.0,
    Order.LATENCY: lambda row: max((row.p99_ms or 0.0, *row.mean_ms)),
}


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

    Each view is about the last minute, as the pages under `/ui/`; at first it is about the time
    since the command began, if nobody looked before. With `--output json` it is one line.
    Exit status: 0 success, 1 unreachable, 2 usage error.

    Example: gateway top 127.0.0.1:9901 --sort errors
    """
    try:
        _show(admin, interval, count, sort, output)
    except KeyboardInterrupt:
        return


def _show(address: str, interval_s: float, count: int, order: Order, output: OutputFormat) -> None:
    get_traffic(address)  # the window of the gateway begins, if nobody looked before
    shown = 0
    while not count or shown < count:
        time.sleep(interval_s if shown else max(_FIRST_S, interval_s))
        traffic = traffic_of(get_traffic(address), order)
        shown += 1
        if output is OutputFormat.JSON:
            print_text(msgspec.json.encode(traffic).decode())
            continue
        rows = shutil.get_terminal_size().lines if sys.stdout.isatty() else None
        clear_terminal()
        print_text("\n".join(traffic_lines(traffic, rows)))


def traffic_of(document: Mapping[str, Any], order: Order = Order.LOAD) -> Traffic:
    """Return the traffic as `/api/v1/status` has it, in `traffic`.

    Args:
        document: The traffic.
        order: What rows are sorted by, in descending order.
    """
    key = _ORDERS[order]

    def rows(
        kind: str, labels: tuple[str, ...], more: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> list[Row]:
        found = [
            Row(
                tuple(each[label] for label in labels),
                each["per_s"],
                each["error_share"] if each["calls"] else None,
                **more(each),
            )
            for each in document[kind]
            if all(each[label] for label in labels)
        ]
        return sorted(found, key=lambda row: (-key(row), -row.per_s, row.names))

    return Traffic(
        seconds=document["window_s"],
        per_s=document["per_s"],
        rejected_per_s=document["rejected_per_s"],
        connections=document["connections"],
        routes=rows(
            "routes",
            ("route",),
            lambda it: {**_percentiles(it), "pending": (it["in_flight"], it["queued"])},
        ),
        targets=rows("targets", ("route", "target"), _percentiles),
        models=rows(
            "models",
            ("model",),
            lambda it: {"mean_ms": _means(it, "upstream_ms", "queue_ms", "overhead_ms")},
        ),
        endpoints=rows(
            "endpoints",
            ("upstream", "address"),
            lambda it: {"mean_ms": _means(it, "mean_ms"), "is_ready": it["ready"]},
        ),
    )


def _percentiles(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"p50_ms": row["p50_ms"], "p99_ms": row["p99_ms"]}


def _means(row: Mapping[str, Any], *names: str) -> tuple[float, ...]:
    return tuple(row[name] or 0.0 for name in names)


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
