"""More models than the room of the real Triton: calls load them, and none of them fails."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.integration.cli_kit import Running
from tests.interop.gateways import serving
from tests.interop.servers.mlserver import start as mlserver
from tests.interop.servers.mlserver.models import MODELS
from tests.interop.servers.process import Command, Ports, RunningServer, running
from tests.interop.servers.triton.residents import BROKEN, NAMES, prepare_residents, read_log
from tests.simulation.residency import lru_loads, zipf

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ROOM = 4
FEW = ("one", "two", "three")
IDENTITY = next(model for model in MODELS if model.name == "identity_int32")
SECONDS = 20
BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]}]}
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """Run a Triton that loads no model by itself."""
    with running("triton", prepare_residents, tmp_path / "triton") as found:
        yield found


@contextmanager
def before(url: str, folder: Path, room: int = ROOM) -> Iterator[Running]:
    """Run a gateway before the server, which holds so many models."""
    config = {
        "version": 1,
        "listeners": [{"http": "127.0.0.1:0"}],
        "admin": {"address": "127.0.0.1:0", "metrics": None},
        "upstreams": {"triton": {"url": url, "residency": {"models": room}}},
        "lifecycle": {"pre_stop": "0s"},
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config))
    with serving(str(file)) as found:
        yield found


class Calls:
    """The calls of several clients, in the order in which they began."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failures: list[str] = []

    def run(self, clients: list[Callable[[], HTTPConnection]]) -> None:
        """Let each client call models for a while."""
        threads = [
            threading.Thread(target=self._client, args=(connect, random.Random(number)))  # noqa: S311
            for number, connect in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, connect: Callable[[], HTTPConnection], draw: random.Random) -> None:
        end = time.monotonic() + SECONDS
        with closing(connect()) as connection:
            while time.monotonic() < end:
                name = zipf(NAMES, draw, 1.2)
                self.names.append(name)
                status, reply = infer(connection, name)
                if status != 200 or json.loads(reply)["outputs"][0]["data"] != [1, 2, 3]:
                    self.failures.append(f"{name}: {status} {reply[:200]}")


def infer(connection: HTTPConnection, name: str) -> tuple[int, str]:
    """Return the status and the body of a reply."""
    connection.request("POST", f"/v2/models/{name}/infer", BODY)
    response = connection.getresponse()
    return response.status, response.read().decode()


def clients(gateway: Running, number: int) -> list[Callable[[], HTTPConnection]]:
    """Return what connects clients to a gateway."""
    return [lambda: HTTPConnection(gateway.addresses["main.http"], timeout=120)] * number


def metric(gateway: Running, name: str) -> dict[str, float]:
    """Return the values of a metric, by its model."""
    with closing(HTTPConnection(gateway.addresses["admin"], timeout=10)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith(name + "{"):
            model = line.partition('model="')[2].partition('"')[0]
            found[model] = found.get(model, 0) + float(line.rpartition(" ")[2])
    return found


def test_zipf_calls_of_one_gateway(server: RunningServer, tmp_path: Path) -> None:
    """No call fails, never more than the room is held, and the loads are few."""
    calls = Calls()
    with before(f"oip+grpc://{server.grpc_address}", tmp_path) as gateway:
        calls.run(clients(gateway, 8))
        loads = metric(gateway, "gateway_residency_loads_total")
        unloads = metric(gateway, "gateway_residency_unloads_total")
    held = read_log(server.log_path)
    assert [] == calls.failures
    assert held.most <= ROOM
    assert len(held.loads) <= 1.25 * lru_loads(calls.names, ROOM)
    assert loads == {name: held.loads.count(name) for name in set(held.loads)}
    assert sum(unloads.values()) in {len(held.unloads), len(held.unloads) - 1}


def test_two_gateways_before_one_server(server: RunningServer, tmp_path: Path) -> None:
    """They share no store, and still none of their calls fails."""
    calls = Calls()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with (
        before(f"oip+http://{server.http_address}", first) as one,
        before(f"oip+grpc://{server.grpc_address}", second) as other,
    ):
        calls.run(clients(one, 4) + clients(other, 4))
    held = read_log(server.log_path)
    assert [] == calls.failures
    assert held.most <= ROOM
    assert held.loads


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_a_model_that_cannot_be_loaded(server: RunningServer, carrier: str, tmp_path: Path) -> None:
    """Each of its callers gets the reason of the server; others are served."""
    address = server.address(carrier)
    with (
        before(f"oip+{carrier}://{address}", tmp_path) as gateway,
        closing(HTTPConnection(gateway.addresses["main.http"], timeout=120)) as connection,
    ):
        for name, expected in ((BROKEN, 503), (NAMES[0], 200), (BROKEN, 503)):
            status, reply = infer(connection, name)
            assert expected == status, reply
            assert name != BROKEN or "no weights" in reply
    assert 1 == read_log(server.log_path).loads.count(BROKEN)


def prepare_mlserver(folder: Path, ports: Ports) -> Command:
    """Return the command of an MLServer that loads no model by itself."""
    command = mlserver.prepare(folder, ports, [replace(IDENTITY, name=name) for name in FEW])
    settings = folder / "models" / "settings.json"
    found = json.loads(settings.read_text()) | {"load_models_at_startup": False}
    settings.write_text(json.dumps(found))
    return command


def held_by(server: RunningServer) -> set[str]:
    """Return the models that a server holds, by its index."""
    with closing(HTTPConnection(server.http_address, timeout=10)) as connection:
        connection.request(
            "POST", "/v2/repository/index", "{}", {"content-type": "application/json"}
        )
        entries = json.loads(connection.getresponse().read())
    return {entry["name"] for entry in entries if entry.get("state") == "READY"}


@pytest.mark.parametrize("carrier", ["http", "grpc"])
def test_models_of_mlserver(carrier: str, tmp_path: Path) -> None:
    """MLServer loads and unloads as Triton does, and holds no more than the room."""
    with running("mlserver", prepare_mlserver, tmp_path / "mlserver") as found:
        address = found.address(carrier)
        with (
            before(f"oip+{carrier}://{address}", tmp_path, room=2) as gateway,
            closing(HTTPConnection(gateway.addresses["main.http"], timeout=120)) as connection,
        ):
            for name in (*FEW, *FEW):
                status, reply = infer(connection, name)
                assert 200 == status, reply
                held = held_by(found)
                assert name in held
                assert len(held) <= 2
