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

async def main():
    loaded = load_text(TEXT)
    gateway = Gateway(loaded)
    reloader = Reloader(lambda: loaded, loaded, gateway.reload)
    await gateway.start(reloader, LeadingParts.of(OwnProcess(loaded)))
    statuses = {path: await get(gateway.addresses["admin"], path) for path in sys.argv[2:]}
    statuses["model"] = await get(gateway.addresses["main.http"], "/v2/models/sum")
    await gateway.stop()
    return statuses

statuses = asyncio.run(main())
wings = ("gateway.migration", "gateway.events", "gateway.shadow")
kit = sorted(name for name in sys.modules if name.startswith(wings))
print(json.dumps([statuses, kit]), file=sys.stderr)
"""


OF_EVENTS = {"extension", "leading", "names", "settings"}
"""Modules that each gateway imports."""


def serve(kit: str, *paths: str) -> tuple[dict[str, int], list[str]]:
    """Run a gateway without a key of the kit; return statuses by path, and modules of the kit."""
    command = [sys.executable, "-c", _PROGRAM, kit, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert 0 == done.returncode, done.stderr
    statuses, modules = json.loads(done.stderr.splitlines()[-1])
    return statuses, modules


def serve_capture(directory: Path) -> list[str]:
    """Run a gateway with a capture; return the modules of the kit that it imported."""
    text = f"capture: {{directory: {directory}}}\n'''"
    program = _PROGRAM.replace("'''\n\nasync def get", f"{text}\n\nasync def get", 1)
    command = [sys.executable, "-c", program, "present"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert 0 == done.returncode, done.stderr
    modules: list[str] = json.loads(done.stderr.splitlines()[-1])[1]
    assert "gateway.migration.mirror.capture_tap" in modules
    return modules


def test_folders_of_the_kit_are_not_imported_without_a_key() -> None:
    """Its pages are there nevertheless, and say that nothing is configured."""
    statuses, modules = serve("present", "/ui/migrations", "/api/v1/migrations", "/stock")
    assert {
        "/ui/migrations": 200,
        "/api/v1/migrations": 200,
        "/stock": 404,
        "model": 200,
    } == statuses
    assert "gateway.migration" in modules
    folders = {name.split(".")[2] for name in modules if name.count(".") > 1}
    assert set() == folders & {"mirror", "cutover", "replay", "report"}
    own = {name for name in modules if name.startswith("gateway.events.")}
    assert OF_EVENTS == {name.rpartition(".")[2] for name in own}


def test_a_gateway_that_records_imports_nothing_of_events(tmp_path: Path) -> None:
    """Without `events`, a capture imports the key of them, and what leads where there are sinks."""
    found = serve_capture(tmp_path)
    own = {name for name in found if name.startswith("gateway.events.")}
    assert OF_EVENTS == {name.rpartition(".")[2] for name in own}


def test_a_gateway_serves_without_the_kit() -> None:
    """Without its line in the registry no module of it is imported, and its paths are unknown."""
    statuses, modules = serve("absent", "/ui/", "/api/v1/status", "/status", "/ui/migrations")
    assert [200, 200, 200, 404, 200] == list(statuses.values())
    assert ["gateway.migration"] == [name for name in modules if "migration" in name]
