"""The weights that the status of commands shows while a cut-over moves calls."""

from __future__ import annotations

from typing import Any

from gateway.app.admin.running import RunningGateway
from gateway.app.run.reload import Reloader
from gateway.config.load import LoadedConfig, load_text
from gateway.config.models import Config
from tests.admin_kit import Process
from tests.unit.migration.admin.kit import Cutover, Evidence, pages

CONFIG = """version: 1
listeners: [{http: 127.0.0.1:0}]
upstreams:
  legacy: {url: "trtis+http://10.0.0.5:8000"}
  triton: {url: "oip+grpc://10.0.0.6:8001"}
routes:
  - name: fraud
    targets: [{upstream: legacy, weight: 3}, {upstream: legacy, model: b}, {upstream: triton, weight: 0}]
"""
FILE = {"legacy": 3, "legacy/b": 1, "triton": 0}


class _Served(Process):
    async def status(self) -> dict[str, Any]:
        return {"routes": [{"name": "fraud", "weights": FILE}, {"name": "gone", "weights": {}}]}


class _Moving(Cutover):
    def moved(self, _config: Config) -> dict[str, tuple[str, float]]:
        return {"fraud": ("triton", 20.0)}


async def test_the_status_of_commands_has_the_weights_in_force() -> None:
    """They are those of the pages: a cut-over moves calls although the file says otherwise."""
    loaded = load_text(CONFIG)

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    reloader = Reloader(lambda: loaded, loaded, apply)
    gateway = RunningGateway(_Served(), reloader, pages(Evidence(), _Moving()))
    found = {each["name"]: each["weights"] for each in (await gateway.plain_status())["routes"]}
    assert {"fraud": {"legacy": 60, "legacy/b": 20, "triton": 20}, "gone": {}} == found
    assert found["fraud"] == (await gateway.status())["weights"]["fraud"]
