"""Fixtures that start the real servers, once a session (a worker of pytest-xdist each)."""

from collections.abc import Iterator, Mapping

import pytest

from tests.integration.cli_kit import Running, get
from tests.interop.attacks import INNOCENT
from tests.interop.client import Client
from tests.interop.environments import environment
from tests.interop.gateways import gateways_before
from tests.interop.sacrifice import Sacrifice
from tests.interop.servers.kserve import start as kserve
from tests.interop.servers.mlserver import start as mlserver
from tests.interop.servers.process import RunningServer, running
from tests.interop.servers.triton import start as triton


@pytest.fixture(scope="session")
def triton_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run Triton 2.51.0 on CPU with every model of `servers/triton/models.py`."""
    with running("triton", triton.prepare, tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.fixture(scope="module")
def bare_triton(triton_server: RunningServer) -> RunningServer:
    """Remove the regions of gateways that tests have killed from Triton."""
    assert (200, None) == get(f"{triton_server.http_url}/v2/systemsharedmemory/unregister", {})
    return triton_server


@pytest.fixture(scope="session")
def mlserver_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run MLServer 1.7.1 with every model of `servers/mlserver/models.py`."""
    with running("mlserver", mlserver.prepare, tmp_path_factory.mktemp("mlserver")) as server:
        yield server


@pytest.fixture(scope="session")
def kserve_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run the KServe ModelServer 0.21.0 with the models of `servers/kserve/serve.py`."""
    with running("kserve", kserve.prepare, tmp_path_factory.mktemp("kserve")) as server:
        yield server


@pytest.fixture(scope="session")
def client() -> Client:
    """Give the environment that holds the real clients."""
    return Client(environment("client"))


@pytest.fixture(scope="module")
def sacrifice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sacrifice]:
    """Run a Triton that may be killed."""
    folder = tmp_path_factory.mktemp("sacrifice")
    server = Sacrifice("triton", triton.prepare_sacrificial, folder, INNOCENT)
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateways(sacrifice: Sacrifice) -> Iterator[Mapping[str, Running]]:
    """Run a gateway with default settings for each carrier to the server."""
    with gateways_before(sacrifice.server) as found:
        yield found
