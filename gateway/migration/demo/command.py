"""The story of `gateway demo --migrate`: mirror, differences, cut-over, fault, rollback, report."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

import typer
import yaml

from gateway.app import Gateway
from gateway.cli.demo.samples import Scan, draw, load_held_out
from gateway.cli.output import FAILED, format_table, print_note, print_text
from gateway.cli.serving.run import run_mapping
from gateway.cli.serving.serve import AdminOption
from gateway.ir.errors import GatewayError
from gateway.migration.demo.story import (
    NAME,
    NEW,
    STEPS,
    AdminClient,
    DemoFailed,
    ScanTraffic,
    Servers,
    different_samples,
    free_ports,
    migration_config,
    old_protocol_client,
)

_COLUMNS: Final = 4
_SOME: Final = 20
_MORE: Final = 100


def migration_demo(
    *,
    admin: AdminOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the page open afterwards.")] = False,
) -> None:
    """Show a migration from start to end; with `--keep` the gateway goes on until Ctrl-C.

    Raises:
        typer.Exit: The exit status: 0 shown, 1 failed, 2 wrong usage.

    Example: gateway demo --migrate
    """
    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as folder:
        story = MigrationStory(Path(folder), keep=keep)
        address = admin or f"127.0.0.1:{free_ports(1)[0]}"
        ports = story.servers.old_port, story.servers.new_port
        config = migration_config(*ports, Path(folder), address)
        (Path(folder) / "gateway.yaml").write_text(yaml.safe_dump(config))
        status = run_mapping(lambda: config, started=story)
    raise typer.Exit(status if story.is_complete else FAILED)


migration_demo.is_hidden = True  # type: ignore[attr-defined]  # `gateway demo --migrate` runs it


class MigrationStory:
    """Tells what happens, while it happens.

    Args:
        folder: The folder that has the recording.
        keep: Whether the gateway goes on afterwards.

    Attributes:
        is_complete: Whether everything was shown.
    """

    def __init__(self, folder: Path, *, keep: bool) -> None:
        self._folder = folder
        self._should_keep = keep
        self.servers = Servers()
        self._open: AsyncExitStack | None = None
        self.is_complete = False

    async def __call__(self, gateway: Gateway) -> None:
        """Tell the story when the gateway listens; then stop it, or let it serve."""
        admin = AdminClient(gateway.addresses["admin"])
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.servers)
                service = await stack.enter_async_context(old_protocol_client(gateway))
                await self._tell(admin, ScanTraffic(service, load_held_out()))
                self.is_complete = True
            except (DemoFailed, GatewayError) as error:
                print_note(f"gateway: the demo failed: {error}")
            if self.is_complete and self._should_keep:
                page = f"http://{gateway.addresses['admin']}/ui/migrations/{NAME}"
                report = self._folder / "report.html"
                print_note(f"\nThe migration: {page}\nThe report: {report}\nCtrl-C stops.")
                self._open = stack.pop_all()  # the old server runs as long as this process
                return
        signal.raise_signal(signal.SIGTERM)

    async def _tell(self, admin: AdminClient, traffic: ScanTraffic) -> None:
        await self._mirror(admin, traffic)
        await self._report()
        sending = asyncio.create_task(traffic.run())
        try:
            await self._cut_over(admin)
            await self._fail(admin, traffic)
        finally:
            sending.cancel()
            await asyncio.wait({sending})

    async def _mirror(self, admin: AdminClient, traffic: ScanTraffic) -> None:
        count = len(traffic.scans)
        print_text(
            f"1. Mirror. A client of TensorRT v1 sends {count} scans to the old server. The\n"
            "   gateway puts each call to the new server, too, which speaks Open Inference\n"
            "   over gRPC, and compares the replies.\n"
        )
        replies = await traffic.send_all()
        document = await admin.wait_until(
            lambda found: _is_settled(found["evidence"], count), f"the comparison of {count} calls"
        )
        print_text(_outputs_table(document["evidence"]) + "\n")
        found = await different_samples(admin, document)
        shown = [(row, traffic.scans[row], replies[row].digit, new) for row, new in found]
        print_text(f"The labels of {len(shown)} scans differ:\n")
        print_text(_drawn(shown))
        pairs = zip(replies, traffic.scans, strict=True)
        old_wrong = sum(reply.digit != scan.digit for reply, scan in pairs)
        change = sum((new != scan.digit) - (old != scan.digit) for _, scan, old, new in shown)
        print_text(
            f"\nThe old model is wrong on {old_wrong} scans, the new one on {old_wrong + change}.\n"
        )

    async def _report(self) -> None:
        print_text(
            "2. Report. The calls were recorded; they are replayed against the new server.\n"
        )
        old, new = self._folder / "old", self._folder / "new"
        url = f"oip+grpc://127.0.0.1:{self.servers.new_port}"
        rules = ("--compare", f"{self._folder / 'gateway.yaml'}#{NAME}")
        model = ("--model", f"{NAME}={NAME}:2")
        await _command("replay", str(old), "--against", url, *model, *rules, "-o", str(new))
        page = self._folder / "report.html"
        await _command("report", str(old), str(new), *rules, "-o", str(page))

    async def _cut_over(self, admin: AdminClient) -> None:
        steps = ", ".join(f"{step} %" for step in STEPS)
        print_text(f"3. Cut-over in steps: {steps} of the calls go to the new server.\n")
        print_text(f"$ gateway cutover start {NAME}")
        await admin.command("start")
        for number, step in enumerate(STEPS[:2], 1):
            found = await admin.wait_until(
                lambda found, number=number: found["cutover"]["step"] >= number, f"step {number}"
            )
            print_text(f"   step {number}: {step} % to {NEW}")
            cutover = found["cutover"]
            print_text(f"           next: {cutover['next']}")
        await admin.wait_until(
            lambda found: found["cutover"]["calls"]["found"] >= _SOME, "calls to the new server"
        )

    async def _fail(self, admin: AdminClient, traffic: ScanTraffic) -> None:
        print_text("\n4. Fault. The new server goes away while half of the calls go to it.\n")
        before = dict(traffic.errors)
        calls = traffic.calls
        began = monotonic()
        await self.servers.stop("new")
        found = await admin.wait_until(
            lambda found: found["cutover"]["weight"] == 0, "the rollback"
        )
        took_s = monotonic() - began
        found = await admin.wait_until(
            lambda found: found["cutover"]["state"] == "rolled_back", "the end of the rollback"
        )
        cutover = found["cutover"]
        print_text(f"5. Rollback. After {took_s:.1f} s no call goes to the new server any more.\n")
        print_text(f"   state: {cutover['state']}\n   reason: {cutover['reason']}\n")
        failed = sum(traffic.errors.values()) - sum(before.values())
        print_text(f"   {failed} of {traffic.calls - calls} calls failed meanwhile.")
        after = traffic.calls, sum(traffic.errors.values())
        await traffic.wait_for(after[0] + _MORE)
        failed = sum(traffic.errors.values()) - after[1]
        print_text(f"   Of the next {traffic.calls - after[0]} calls {failed} failed.\n")
        events = [(each["event"], each["text"]) for each in cutover["events"]]
        print_text(format_table(("event", "what happened"), events))


async def _command(*arguments: str) -> None:
    """Run a command of the gateway, and print it with its output.

    Raises:
        DemoFailed: It failed.
    """
    print_text("$ gateway " + " ".join(arguments))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode(errors="replace").rstrip()
    if process.returncode:
        raise DemoFailed(f"'gateway {arguments[0]}' exited with {process.returncode}: {output}")
    print_text(output + "\n")


def _is_settled(evidence: Mapping[str, Any] | None, count: int) -> bool:
    """Return whether each of so many calls was compared, or has a reason why not."""
    return evidence is not None and evidence["sampled"] >= count and not evidence["in_flight"]


def _outputs_table(evidence: Mapping[str, Any]) -> str:
    rows = [
        (
            each["name"],
            str(each["compared"]),
            str(each["mismatched"]),
            f"{each['mismatched'] / max(each['compared'], 1):.2%}",
            f"{each['interval'][0] * 100:.3f}-{each['interval'][1]:.3%}",
        )
        for each in evidence["outputs"]
    ]
    head = ("output", "compared", "mismatched", "rate", "95% interval")
    return format_table(head, rows, right=(1, 2, 3, 4))


def _drawn(samples: Sequence[tuple[int, Scan, int, int]]) -> str:
    """Return scans side by side, each with its name and what both servers take it for.

    The name is that of its call in the recording, the report and the page.
    """
    blocks = []
    for first in range(0, len(samples), _COLUMNS):
        part = samples[first : first + _COLUMNS]
        drawings = [draw(scan).splitlines() for _, scan, _, _ in part]
        lines = ["   ".join(each).rstrip() for each in zip(*drawings, strict=True)]
        names = [f"scan-{row}" for row, *_ in part]
        labels = [f"{scan.digit}: old {old}, new {new}" for _, scan, old, new in part]
        lines += ["   ".join(f"{it:16}" for it in texts).rstrip() for texts in (names, labels)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
