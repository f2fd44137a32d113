"""The migration kit is optional: what a gateway without its keys imports, and without its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import asyncio, json, sys
import gateway.registry

if sys.argv[1] == "absent":
    del gateway.registry.EXTENSIONS["migration"]
    sys.modules["gateway.migration"] = None  # an import of it fails

from gateway.app.run.gateway import Gateway
from gateway.app.build.parts import LeadingParts, OwnProcess
from gateway.app.run.reload import Reloader
from gateway.config.load import load_text

TEXT = '''
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", metrics: null}
lifecycle: {pre_stop: 0s}
models:
  sum: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
'''

async def get(address, path):
    reader, writer = await asyncio.open_connection(*address.split(":"))
    lines = f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", "", ""
    writer.write("\\r\\n".join(lines).encode())
    reply = await reader.read()
    writer.close()
    return int(reply.split()[1])

async def main(text):
    loaded = load_text(text)
    gateway = Gateway(loaded)
    reloader = Reloader(lambda: loaded, loaded, gateway.reload)
    await gateway.start(reloader, LeadingParts.of(OwnProcess(loaded)))
    statuses = {path: await get(gateway.addresses["admin"], path) for path in sys.argv[2:]}
    statuses["model"] = await get(gateway.addresses["main.http"], "/v2/models/sum")
    await gateway.stop()
    return statuses

capture = sys.argv.pop(2)
wings = ("gateway.migration", "gateway.events", "gateway.shadow")
for more in ("", f"capture: {{directory: {capture}}}\\n") if capture else ("",):
    statuses = asyncio.run(main(TEXT + more))
    kit = sorted(name for name in sys.modules if name.startswith(wings))
    print(json.dumps([statuses, kit]), file=sys.stderr)
"""


OF_EVENTS = {"extension", "leading", "names", "settings"}
"""Modules that each gateway imports."""


def serve(kit: str, capture: str, *paths: str) -> list[tuple[dict[str, int], list[str]]]:
    """Run a gateway without a key of the kit, then one that records in the folder *capture*.

    Returns:
        For each, statuses by path, and modules of the kit that are imported then.
    """
    command = [sys.executable, "-c", _PROGRAM, kit, capture, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert 0 == done.returncode, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[{")]


def test_the_kit_is_not_imported_without_a_key(tmp_path: Path) -> None:
    """Its pages say that nothing is configured; a capture alone imports nothing more of events."""
    pages = ("/ui/migrations", "/api/v1/migrations", "/stock")
    (statuses, modules), (_, recording) = serve("present", str(tmp_path), *pages)
    assert {
        "/ui/migrations": 200,
        "/api/v1/migrations": 200,
        "/stock": 404,
        "model": 200,
    } == statuses
    assert "gateway.migration" in modules
    folders = {name.split(".")[2] for name in modules if name.count(".") > 1}
    assert set() == folders & {"mirror", "cutover", "replay", "report"}
    assert "gateway.migration.mirror.capture_tap" in recording
    for found in (modules, recording):
        own = {name for name in found if name.startswith("gateway.events.")}
        assert OF_EVENTS == {name.rpartition(".")[2] for name in own}


def test_a_gateway_serves_without_the_kit() -> None:
    """Without its line in the registry no module of it is imported, and its paths are unknown."""
    pages = ("/ui/", "/api/v1/status", "/status", "/ui/migrations")
    ((statuses, modules),) = serve("absent", "", *pages)
    assert [200, 200, 200, 404, 200] == list(statuses.values())
    assert ["gateway.migration"] == [name for name in modules if "migration" in name]
