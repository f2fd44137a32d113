"""Two workers that serve a thousand models, while clients call and operators look."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.integration import workers_kit as kit
from tests.integration.cli_kit import Running, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MODELS = 1000
LOOKS = ("/metrics", "/status", "/api/v1/status", "/metrics") * 2
SIMPLE = {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
_LAG = re.compile(
    r'^gateway_event_loop_lag_seconds_(?:bucket\{le="1.0"\}|count) (\S+)$', re.MULTILINE
)


def get(running: Running, path: str) -> tuple[int, bytes]:
    """Return the status and the body of a request to the admin port."""
    with closing(HTTPConnection(running.addresses["admin"], timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def call_each(running: Running, worker: int) -> None:
    """Call each model once at one worker."""
    with closing(kit.connected_to(running, worker)) as connection:
        assert {200} == {kit.ask(connection, f"m{number}") for number in range(MODELS)}


def test_workers_of_a_thousand_models_stay_up_while_they_are_read(tmp_path: Path) -> None:
    """None is restarted, readiness holds, no call fails, and no turn of a loop takes a second."""
    config: dict[str, Any] = {
        "version": 1,
        "workers": 2,
        "listeners": [{"http": "127.0.0.1:0"}],
        "admin": {"address": "127.0.0.1:0", "metrics": None},
        "telemetry": {
            "metrics": {"compat": ["triton"], "series": 5000},
            "log": {"calls_per_second": 0},
        },
        "models": {"simple": SIMPLE} | {f"m{number}": SIMPLE for number in range(MODELS)},
        "lifecycle": {"pre_stop": "0s"},
    }
    (tmp_path / "gateway.yaml").write_text(json.dumps(config))
    with serving(str(tmp_path / "gateway.yaml"), patience_s=120) as running:
        for worker in (1, 2):
            call_each(running, worker)
        before = _lags(running)
        with kit.Load(running, clients=2) as load, _probing(running) as ready:
            pages = [(path, *get(running, path)) for path in LOOKS]
        after = _lags(running)
        assert ([], {200}) == (load.lost, set(ready))
        assert load.answered > len(pages)
        assert {1: 0.0, 2: 0.0} == kit.of_workers(running, "worker_restarts_total")
        assert after[0] - before[0] == after[1] - before[1] > 0
        assert {200} == {status for _, status, _ in pages}
        for path, _, body in pages:
            if path == "/metrics":
                names = re.findall(
                    rb'^nv_inference_count\{model="m\d+",.*\} 2.0$', body, re.MULTILINE
                )
                assert MODELS == len(names)
                calls = re.findall(
                    rb'^gateway_requests_total\{.*model="m\d+".*\} 2.0$', body, re.MULTILINE
                )
                assert MODELS == len(calls)
            else:
                assert MODELS < len(json.loads(body)["models"])


def _lags(running: Running) -> tuple[float, float]:
    """Return the timers that were less than a second late, and all timers."""
    within, total = _LAG.findall(kit.metrics(running))
    return float(within), float(total)


@contextmanager
def _probing(running: Running) -> Iterator[list[int]]:
    """Ask for the readiness again and again; return the statuses."""
    over = threading.Event()
    found: list[int] = []

    def probe() -> None:
        while not over.wait(0.1):
            found.append(get(running, "/readyz")[0])

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        yield found
    finally:
        over.set()
        probing.join()
