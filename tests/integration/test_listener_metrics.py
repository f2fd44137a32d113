"""`/metrics` on the address of a listener: for platforms that know one port of a container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest

from tests.integration.cli_kit import Running, serving
from tests.integration.workers_kit import BODY

pytestmark = pytest.mark.timeout(60)

NAME = "main.http+grpc"
CONFIG = """
version: 1
workers: {workers}
listeners: [{{address: "127.0.0.1:0", metrics: true}}]
admin: {{address: null, metrics: null}}
models: {{simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}}}
lifecycle: {{pre_stop: 0s}}
"""


@pytest.fixture(scope="module", params=[1, 2])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("metrics") / "gateway.yaml"
    path.write_text(CONFIG.format(workers=request.param))
    with serving(str(path)) as found:
        yield found


def fetch(running: Running, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """Send a request over a connection of its own, which any worker may get."""
    with closing(HTTPConnection(running.addresses[NAME], timeout=60)) as connection:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_the_page_has_all_workers(running: Running) -> None:
    """Whichever worker replies, the page has the calls of all."""
    for number in range(1, 7):
        assert 200 == fetch(running, "POST", "/v2/models/simple/infer", BODY)[0]
        status, text = fetch(running, "GET", "/metrics")
        assert 200 == status
        lines = [line for line in text.splitlines() if 'kind="InferRequest"' in line]
        (count,) = (
            float(line.split()[-1]) for line in lines if line.startswith("gateway_requests_total")
        )
        assert number == count


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/metrics", 405), ("GET", "/metrics/x", 404)]
)
def test_nothing_else_is_served_there(
    running: Running, method: str, path: str, status: int
) -> None:
    """Other methods and paths are refused."""
    assert status == fetch(running, method, path)[0]
