"""The command `cutover`: where a cut-over stands, and what operators do with it."""

import enum
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from gateway.cli.admin import asks_admin, get_document, post_document
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    parse_or_fail,
    print_json,
    print_text,
)
from gateway.ir.texts import printable
from gateway.migration.compare.reasons import reason_line
from gateway.migration.cutover.steps import format_duration
from gateway.settings.units import parse_duration

_POLL_S: Final = 1.0


class CutoverAction(enum.Enum):
    """What happens with a cut-over."""

    STATUS = "status"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    APPROVE = "approve"
    ROLLBACK = "rollback"
    RESET = "reset"
    WAIT = "wait"


@asks_admin()
def cutover(
    action: Annotated[CutoverAction, typer.Argument(help="What to show or to do.")],
    migration: Annotated[str, typer.Argument(metavar="MIGRATION", help="Name of the migration.")],
    admin: str,
    at_step: Annotated[
        int | None,
        typer.Option(metavar="N", help="With resume: begin at this step; 0 only mirrors."),
    ] = None,
    timeout: Annotated[
        str, typer.Option(metavar="6h", help="With wait: the longest time to wait.")
    ] = "6h",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show or control the cut-over of a migration to its new target.

    `wait` ends when the cut-over does. Exit status: 0 success, 1 refused or unreachable, 2 usage
    error; of `wait`: 0 done, 1 rolled back, paused or late.

    Example: gateway cutover start fraud
    """
    if at_step is not None and action is not CutoverAction.RESUME:
        fail(f"--at-step with {action.value!r}; expected it with 'resume' only", WRONG_USAGE)
    path = f"/api/v1/migrations/{quote(migration, safe='')}"
    if action is CutoverAction.WAIT:
        timeout_s = parse_or_fail(parse_duration, timeout, "--timeout")
        _wait(path, migration, admin, timeout_s)
        return
    if action is CutoverAction.STATUS:
        document = _get(path, migration, admin)
    else:
        body = {} if at_step is None else {"at_step": at_step}
        document = post_document(admin, f"{path}/{action.value}", body)["cutover"]
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        print_text("\n".join(cutover_lines(document)))


def _get(path: str, migration: str, admin: str) -> dict[str, Any]:
    found: dict[str, Any] | None = get_document(admin, path)["cutover"]
    if found is None:
        fail(f"migration {migration!r} has no cut-over; expected 'cutover' in the configuration")
    return found


def _wait(path: str, migration: str, admin: str, timeout_s: float) -> None:
    """Print each change until the cut-over is done; fail if it ends otherwise, or too late."""
    deadline = time.monotonic() + timeout_s
    printed = ""
    while True:
        document = _get(path, migration, admin)
        line = next(cutover_lines({**document, "bake": None}))
        if line != printed:
            print_text(line)
            printed = line
        if document["state"] == "done":
            return
        if document["state"] in {"paused", "rolling_back", "rolled_back"}:
            raise typer.Exit(FAILED)
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            fail(f"the cut-over of {migration!r} is not done after {format_duration(timeout_s)}")
        time.sleep(min(_POLL_S, remaining_s))


def cutover_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a cut-over for a terminal."""
    yield printable(_first_line(document))
    guards = [(each["guard"], each["verdict"], each["evidence"]) for each in document["guards"]]
    if guards:
        yield from format_table(guards[0], guards[1:]).splitlines()
    replies = document.get("replies")
    if replies and not any(guard == "mismatch.below" for guard, *_ in guards):
        found = f"{replies['different']} of {replies['compared']} compared replies differ"
        yield f"no guard watches replies: {found}"
    yield from map(reason_line, document.get("reasons", ()))
    if document["next"]:
        yield f"next: {document['next']}"


def _first_line(document: Mapping[str, Any]) -> str:
    state, steps = document["state"], document["steps"]
    where = f"{document['weight']:g}% to {document['new']}"
    if state in {"ready", "done", "rolling_back", "rolled_back"}:
        reason = f": {document['reason']}" if document["reason"] else ""
        return f"{state.replace('_', ' ')}: {where}{reason}"
    step = f"step {document['step']} of {len(steps)}: {where}"
    if state == "paused":
        return f"{step}, paused: {document['reason']}"
    bake, calls = document["bake"], document["calls"]
    if bake is None:
        return f"{step}, {state.replace('_', ' ')}"
    return (
        f"{step}, {state.replace('_', ' ')} {format_duration(int(bake['passed_s']))} of "
        f"{format_duration(bake['of_s'])}, {calls['found']} of {calls['of']} "
        f"{'calls answered' if document['step'] else 'comparisons'}"
        f"{', ' + str(calls['failed']) + ' failed' if calls['failed'] else ''}"
    )
