"""The command `residency`: which models servers hold, and what operators change about it."""

import enum
from typing import Annotated, Any

import typer

from gateway.cli.admin import asks_admin, get_document, post_change
from gateway.cli.output import (
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    print_json,
    print_text,
)


class ResidencyAction(enum.Enum):
    """What happens to a model."""

    PIN = "pin"
    UNPIN = "unpin"
    EVICT = "evict"


@asks_admin(metavar=None)
def residency(
    admin: str,
    action: Annotated[
        ResidencyAction | None, typer.Argument(help="Keep a model, or unload it; else a table.")
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of the model.")] = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show which models are loaded, or pin, unpin or evict one.

    `pin` loads a model and keeps it, until `unpin` or a restart. `evict` unloads it at the end of
    its running calls; the next call loads it again.
    Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway residency pin fraud
    """
    if action is not None:
        if name is None:
            fail(f"'{action.value}' needs the name of a model", WRONG_USAGE)
        post_change(admin, f"/residency/{action.value}", {"name": name})
        return
    document = get_document(admin, "/api/v1/residency")
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        print_text(_table(document["upstreams"]))


def _table(upstreams: dict[str, Any]) -> str:
    if not upstreams:
        return "no upstream has 'residency'"
    rows = [
        (
            upstream,
            endpoint["endpoint"],
            model["name"],
            model["state"],
            str(model["uses"]),
            str(model["waiting"]),
            "pinned" if model["pinned"] else "",
        )
        for upstream, endpoints in upstreams.items()
        for endpoint in endpoints
        for model in endpoint["models"]
    ]
    return format_table(("upstream", "endpoint", "model", "state", "uses", "waiting", ""), rows)
