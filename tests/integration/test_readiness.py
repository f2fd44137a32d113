"""Readiness of a whole gateway of which one upstream is dead."""

from __future__ import annotations

import pytest

from gateway.ir.calls import ModelReadyRequest, ServerLiveRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unavailable
from tests.integration.asking_kit import running

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{ready: {ready}, pre_stop: 0s, drain: 1s}}
upstreams:
  dead: {{url: "oip+http://127.0.0.1:1"}}
models:
  sum: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
routes:
  - {{name: own, match: {{model: sum}}, targets: [{{model: sum}}]}}
  - {{name: away, match: {{model: far}}, targets: [{{upstream: dead}}]}}
"""


@pytest.mark.parametrize(
    ("ready", "expected"),
    [("any", True), ("all", False), ("[own]", True), ("[own, away]", False), ("away", False)],
)
async def test_a_dead_upstream_takes_only_its_routes_out_of_service(
    ready: str, expected: bool
) -> None:
    """The routes of `lifecycle.ready` decide; the gateway lives in every case."""
    async with running(CONFIG.format(ready=ready)) as gateway:
        assert expected is await gateway.ready()
        assert await gateway.service(ServerLiveRequest())
        assert await gateway.service(ModelReadyRequest(model=ModelRef("sum")))
        with pytest.raises(Unavailable):
            await gateway.service(ModelReadyRequest(model=ModelRef("far")))
