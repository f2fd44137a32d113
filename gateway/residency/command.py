"""The command `residency`: which models servers hold, and what operators change about it."""

from typing import Annotated, Any, Final

import typer

from gateway.cli.admin import asks_admin, get_document, post_change, split_address
from gateway.cli.calling.liveness import DEFAULT_ADMIN
from gateway.cli.output import (
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    print_json,
    print_text,
)

_ACTIONS: Final = ("pin", "unpin", "evict")


@asks_admin(metavar=None)
def residency(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=f"[{'|'.join(_ACTIONS)} NAME] [ADDR]",
            help="Keep a model, or unload it; else a table.",
        ),
    ] = None,
    admin: str = DEFAULT_ADMIN,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show which models are loaded, or pin, unpin or evict one.

    `pin` loads a model and keeps it, until `unpin` or a restart. `evict` unloads it at the end of
    its running calls; the next call loads it again.
    Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway residency pin fraud
    """
    words, admin = split_address(words or (), admin)
    if words:
        if words[0] not in _ACTIONS or len(words) != 2:  # noqa: PLR2004  # action and name
            expected = f"nothing, or one of {', '.join(_ACTIONS)} and the name of a model"
            fail(f"the arguments are {' '.join(words)!r}; expected {expected}", WRONG_USAGE)
        post_change(admin, f"/residency/{words[0]}", {"name": words[1]})
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
