"""The command `status`: what a running gateway says about itself on its admin port."""

import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin import asks_admin, get_status
from gateway.cli.output import (
    FAILED,
    OutputFormat,
    OutputOption,
    clear_terminal,
    format_table,
    print_json,
    print_text,
)

_INTERVAL_S: Final = 2.0


@asks_admin()
def status(
    admin: str,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print it again every 2 seconds.")
    ] = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show listeners, routes, upstreams and warnings of a running gateway.

    Exit status: 0 ready, or Ctrl-C while it watches; 1 not ready or unreachable, 2 usage error.

    Example: gateway status 127.0.0.1:9901 --watch
    """
    if watch:
        _watch(admin, output)
    elif not _show(admin, output)["ready"]:
        raise typer.Exit(FAILED)


def _watch(address: str, output: OutputFormat) -> None:
    try:
        while True:
            if output is OutputFormat.TEXT:
                clear_terminal()
            _show(address, output)
            time.sleep(_INTERVAL_S)
    except KeyboardInterrupt:
        return


def _show(address: str, output: OutputFormat) -> Any:
    document = get_status(address)
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        print_text("\n".join(status_lines(document)))
    return document


def status_lines(document: Any) -> Iterator[str]:
    """Yield the lines of a status for a terminal."""
    state = "ready" if document["ready"] else f"not ready: {document['reason']}"
    config = document["config"]
    yield f"Tensor Gateway {document['version']}: {state}"
    yield f"{config['file']} (sha256 {config['sha256'][:12]}), started {document['started']}"
    yield from _table(
        ("listener", "address"), [(name, at) for name, at in document["listeners"].items()]
    )
    yield from _table(
        ("route", "ready", "targets", "reason"),
        [
            (route["name"], _yes(route["ready"]), _targets(route), route["reason"])
            for route in document["routes"]
        ],
    )
    yield from _table(
        ("upstream", "endpoint", "available", "since s", "mean ms", "server", "reason"),
        [
            (
                upstream["name"],
                endpoint["address"],
                _yes(endpoint["available"]),
                f"{endpoint['since_s']:g}",
                f"{endpoint['mean_latency_ms']:g}",
                endpoint.get("server", ""),
                endpoint["reason"],
            )
            for upstream in document["upstreams"]
            for endpoint in upstream["endpoints"]
        ],
    )
    for line in document.get("runtime", {}).get("lines", ()):
        yield f"changed at run time: {line}"
    for warning in document["warnings"][-5:]:
        yield f"warning: {_short(warning)}"


def _targets(route: dict[str, Any]) -> str:
    """Return the targets of a route, with their weights if there are several."""
    weights = route.get("weights", {})
    if len(weights) < 2:  # noqa: PLR2004  # one target gets all calls
        return ", ".join(route["targets"])
    return ", ".join(f"{name}={weight:g}" for name, weight in weights.items())


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield ""
        yield format_table(head, rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _short(warning: dict[str, Any]) -> str:
    rest = {key: it for key, it in warning.items() if key not in ("event", "level")}
    return f"{warning['event']} " + " ".join(f"{key}={value}" for key, value in rest.items())
