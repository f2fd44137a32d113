"""Workers: the cost of a small request with two workers, compared with one process.

Both gateways, the canned upstream and the load share all cores, because two workers on one core
would only take turns. Each round measures one after the other. CPU time includes the supervisor,
which adds up metrics every two seconds.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection

from benchmarks import messages, rounds, systems
from benchmarks.jobs import Contender, Job
from benchmarks.processes import free_port
from benchmarks.progress import Say
from benchmarks.rounds import BASE, Row, Settings
from benchmarks.systems import Running

TWO = f"{BASE}, 2 workers"
_CONNECTIONS = 32
_READY_S = 60.0


def run(settings: Settings, say: Say) -> list[Row]:
    """Measure both. The ratio of the second row is the result."""
    small = messages.small()
    contenders = [
        Contender(
            name,
            partial(_gateway, workers=workers),
            front="http",
            back="grpc",
            question=messages.json_request(small),
            path=f"/v2/models/{small.model}/infer",
            read=messages.read_http,
        )
        for name, workers in ((BASE, 1), (TWO, 2))
    ]
    replies = {"grpc": messages.grpc_reply(small)}
    job = Job("json-grpc small, all cores", small, _CONNECTIONS, tuple(contenders), replies)
    return rounds.run(job, settings, frozenset(), say)


@contextmanager
def _gateway(carrier: str, upstream_port: int, *, workers: int) -> Iterator[Running]:
    """Run a gateway with a number of workers, and check at the end that each had requests."""
    admin = free_port()
    sections = {"workers": workers, "admin": {"address": f"127.0.0.1:{admin}", "metrics": None}}
    with systems.gateway(carrier, upstream_port, sections=sections, anywhere=True) as running:
        if workers > 1:
            _until_all_serve(admin, workers)
        yield running
        if workers > 1 and not all(_of_workers(admin, "requests_total")):
            raise RuntimeError(f"not all of {workers} workers have answered anything")


def _until_all_serve(admin: int, workers: int) -> None:
    deadline = time.monotonic() + _READY_S
    while _of_workers(admin, "up") != [1.0] * workers:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all of {workers} workers serve after {_READY_S:g} s")
        time.sleep(0.05)


def _of_workers(admin: int, metric: str) -> list[float]:
    """Return a metric of each worker."""
    connection = HTTPConnection("127.0.0.1", admin, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    name = f"gateway_worker_{metric}{{"
    return [float(line.split()[1]) for line in lines if line.startswith(name)]
