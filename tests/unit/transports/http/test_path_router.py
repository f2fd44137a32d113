"""Which frontend answers a path, and how it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from gateway.ir.errors import GatewayError
from gateway.transports.contract import HttpFrontend, HttpMount
from gateway.transports.http.faults import HttpError
from gateway.transports.http.path_router import PathRouter
from gateway.wire.http import HttpRequest, HttpResponse


class Streaming(HttpFrontend):
    """Answers as frontends must: in a generator."""

    async def __call__(self, _wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        yield HttpResponse(200)

    def reject(self, error: GatewayError, /) -> HttpResponse:
        raise error


class Single(Streaming):
    """Has the one answer at hand, too."""

    async def handle(self, _wire: HttpRequest) -> HttpResponse:
        return HttpResponse(201)


STREAMING, SINGLE = Streaming(), Single()
TABLE = PathRouter([HttpMount(("/v2",), STREAMING), HttpMount(("/v2/models/",), SINGLE)], None)


@pytest.mark.parametrize(
    ("path", "frontend"), [("/v2", STREAMING), ("/v2/modelsx", STREAMING), ("/v2/models/m", SINGLE)]
)
def test_the_longest_prefix_wins(path: str, frontend: Streaming) -> None:
    """A prefix claims itself and what is below it, and the most exact claim counts."""
    assert frontend is TABLE.find(path)[0]


def test_an_unclaimed_path_is_not_found() -> None:
    """Nobody answers it, each time it is asked for."""
    for _ in range(2):
        with pytest.raises(HttpError) as caught:
            TABLE.find("/v3")
        assert 404 == caught.value.response.status


async def test_each_is_asked_as_it_can_be() -> None:
    """One with a single answer at hand is asked for it; any other gives its generator."""
    wire = HttpRequest("GET", "/v2")
    single = await TABLE.find("/v2/models/m")[1](wire)
    many = await TABLE.find("/v2")[1](wire)
    assert HttpResponse(201) == single
    assert isinstance(many, AsyncGenerator)
    assert [HttpResponse(200)] == [answer async for answer in many]


def test_the_root_is_served_where_nothing_else_claims_it() -> None:
    """A mount may serve "/" itself; no path below it, and nothing that a fallback or mount has."""
    mounts = [HttpMount(("/grps",), SINGLE, root=True), HttpMount(("/v2",), STREAMING)]
    router = PathRouter(mounts, None)
    assert SINGLE is router.find("/")[0]
    with pytest.raises(HttpError, match="nothing is served at '/other'"):
        router.find("/other")
    assert STREAMING is PathRouter(mounts, STREAMING).find("/")[0]
    assert STREAMING is PathRouter([*mounts, HttpMount(("/",), STREAMING)], None).find("/")[0]
