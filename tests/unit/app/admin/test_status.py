"""The status reports why a route gets no calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.app.admin.status.document import route_entries
from gateway.app.build.route_rules import RuledRoute
from gateway.app.build.routes import BuiltRoute
from gateway.app.build.upstreams import BuiltUpstream
from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import NotSent, Unavailable
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import ALL, Endpoints
from gateway.routing.balancing.outlier_detection import DEFAULT
from tests.fakes import ScriptedService


async def drain(endpoints: Endpoints) -> None:
    endpoints.drain({ALL})


async def eject(endpoints: Endpoints) -> None:
    endpoints.endpoints[0].health.eject(DEFAULT, endpoints.endpoints[0].clock())


async def lose(endpoints: Endpoints) -> None:
    with pytest.raises(Unavailable):
        await endpoints(InferRequest(model=ModelRef("m")))


async def forget(endpoints: Endpoints) -> None:
    endpoints.replace(())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (drain, "upstream up: endpoint a: drained"),
        (eject, "upstream up: endpoint a: ejected"),
        (lose, "upstream up: endpoint a: it could not be reached a moment ago"),
        (forget, "upstream up: no address: its name could not be looked up"),
    ],
)
async def test_every_missing_endpoint_was_reported_as_ejected(
    change: Callable[[Endpoints], Awaitable[None]], expected: str
) -> None:
    """An endpoint may also be drained or unreachable, or its name may have no address."""
    endpoint = Endpoint("a", ScriptedService(always=NotSent("refused")))
    endpoints = Endpoints("up", [endpoint], is_fixed=False)
    await change(endpoints)
    upstream = cast("BuiltUpstream", SimpleNamespace(endpoints=endpoints))
    route = BuiltRoute(RuledRoute("r", ()), ScriptedService(), lambda: False)
    (entry,) = route_entries([route], {"up": upstream}, [])
    assert expected == entry["reason"]
