"""`gateway top`, `/api/v1/status` and `/ui/` show equal numbers for the same minute."""

from __future__ import annotations

import asyncio
import json
import re

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import start_pages
from gateway.app.run.reload import Reloader
from gateway.config.admin import AdminConfig
from gateway.config.load import load_text
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context
from gateway.settings.units import Address, StreamAddress
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.call_log import CallRecord
from tests.fakes import FakeClock
from tests.integration.asking_kit import running
from tests.integration.cli_kit import gateway as command

pytestmark = pytest.mark.timeout(90)

BEHIND = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "off"}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  sum: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "off"}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams: {{up: {{url: "oip+http://{address}", probe: {{interval: 1h}}}}}}
routes: [{{name: all, match: {{model: "*"}}, targets: [{{upstream: up}}]}}]
"""
ROW = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
BODY = json.dumps({"inputs": [{"name": f"INPUT{number}", **ROW} for number in range(2)]}).encode()


def row(page: str, name: str) -> list[str]:
    """Return the cells of the first row of a table that has a cell *name*."""
    for found in re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL):
        cells = [re.sub(r"<[^>]*>", "", each).strip() for each in re.split(r"</t[hd]>", found)]
        if name in cells:
            return cells[:-1]
    raise LookupError(name)


def leave(front: Gateway, address: str) -> None:
    """Count a call whose client left."""
    path = CallPath(route="all", target="up", upstream_s=0.5)
    context = Context(protocol="oip.http")
    call = CallRecord("InferRequest", "sum", "", context, path, "cancelled", None, 0.5, 1.0)
    front.metrics.call(call)
    front.metrics.attempts.of("up", address).record(InferRequest, None, 0.5, "cancelled")


async def test_top_and_the_pages_show_equal_numbers() -> None:
    """They are equal by route, target and endpoint, and a cancelled call is no failure."""
    clock = FakeClock()
    async with running(BEHIND) as behind:
        loaded = load_text(FRONT.format(address=behind.addresses["main.http"]))
        front = Gateway(loaded)
        reloader = Reloader(lambda: loaded, loaded, front.reload)
        await front.start()
        pages = await start_pages(
            AdminConfig(address=StreamAddress(Address("127.0.0.1", 0)), metrics=None),
            RunningGateway(front, reloader, clock=clock),
        )
        admin, address = pages["admin"].address, front.addresses["main.http"]
        try:
            async with aiohttp.ClientSession() as session:
                for model in ["sum"] * 9 + ["other"] * 3:
                    path = f"http://{address}/v2/models/{model}/infer"
                    async with session.post(path, data=BODY) as response:
                        await response.read()
                leave(front, behind.addresses["main.http"])
                clock.advance(20.0)
                async with session.get(f"http://{admin}/api/v1/status") as response:
                    traffic = (await response.json())["traffic"]
                async with session.get(f"http://{admin}/ui/") as response:
                    page = await response.text()
            done = await asyncio.to_thread(command, "top", admin, "--count=1", "-o", "json")
            shown = await asyncio.to_thread(command, "top", admin, "--count=1")
        finally:
            await pages["admin"].stop()
            await front.stop()
    assert 0 == done.returncode, done.stderr
    view = json.loads(done.stdout)
    (route,), (target,), (endpoint,) = (
        traffic[kind] for kind in ("routes", "targets", "endpoints")
    )
    (top_route,), (top_target,), (top_endpoint,) = (
        view[kind] for kind in ("routes", "targets", "endpoints")
    )
    assert (13, 3) == (route["calls"], route["errors"])
    assert (20.0, traffic["per_s"]) == (view["seconds"], view["per_s"])
    for mine, other in ((route, top_route), (target, top_target), (endpoint, top_endpoint)):
        assert (mine["per_s"], mine["error_share"]) == (other["per_s"], other["failed"])
    for mine, other in ((route, top_route), (target, top_target)):
        assert (mine["p50_ms"], mine["p99_ms"]) == (other["p50_ms"], other["p99_ms"])
    assert [endpoint["mean_ms"]] == top_endpoint["mean_ms"]
    rate, share = f"{route['per_s']:.2f}", f"{route['error_share']:.1%}"
    assert [rate, share.replace("%", " %")] == row(page, "all")[4:6]
    assert [f"{endpoint['per_s']:.2f}"] == row(page, behind.addresses["main.http"])[5:6]
    assert f"{top_route['per_s']:.1f}" in shown.stdout
    assert share in shown.stdout
