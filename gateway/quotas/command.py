"""The command `quotas`: what clients have used of each quota."""

from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli.admin import asks_admin, get_document
from gateway.cli.output import OutputFormat, OutputOption, format_table, print_json, print_text

_COLUMNS = ("quota", "of", "used", "left", "limit", "unit", "whole in", "mode")


@asks_admin()
def quotas(
    admin: str,
    quota: Annotated[str, typer.Option(metavar="NAME", help="Only this quota.")] = "",
    client: Annotated[str, typer.Option(metavar="NAME", help="Only this client.")] = "",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show what clients have used of each quota, over all workers and replicas.

    Budgets of which most is used come first. Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway quotas --client fraud
    """
    query = urlencode({"quota": quota, "client": client})
    document = get_document(admin, f"/api/v1/quotas?{query}")
    if output is OutputFormat.JSON:
        print_json(document)
    elif document["budgets"]:
        rows = [_row(each) for each in document["budgets"]]
        print_text(format_table(_COLUMNS, rows, right=(2, 3, 4)))
    else:
        print_text("no call was counted by a quota")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    return (
        each["quota"],
        " ".join(f"{name}={value}" for name, value in each["by"].items()) or "all",
        str(each["used"]),
        str(each["left"]),
        f"{each['limit']}/{each['period']}",
        each["unit"],
        f"{each['reset_s']} s",
        each["mode"],
    )
