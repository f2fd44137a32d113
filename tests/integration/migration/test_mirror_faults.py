"""A mirror whose shadow process dies or stops, or whose new target does not serve."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.integration import workers_kit
from tests.integration.asking_kit import running
from tests.integration.migration import mirror_kit as kit
from tests.integration.migration.digits_kit import digits
from tests.integration.shadow_kit import shadow_pid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def scans() -> kit.Scans:
    rows: kit.Scans = digits()[::4]
    return rows


@asynccontextmanager
async def faulty_server(fault: str) -> AsyncIterator[str]:
    """Yield the address of a server that stalls, resets, lies or floods; "refuse" has none."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                if fault == "stall" and data.startswith(b"GET /v2/health"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                if fault == "reset":
                    writer.transport.abort()
                    return
                if fault == "lie":
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n{}")
                    await writer.drain()
                    writer.close()
                    return
                if fault == "rubbish":
                    writer.write(b"\x00\xff rubbish\r\n" * 1000)
                    await writer.drain()
        except OSError:
            return

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    if fault == "refuse":
        server.close()
        await server.wait_closed()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()


FAULTS = ["stall", "reset", "refuse", "lie", "rubbish"]


async def test_faulty_new_targets_fail_no_call(scans: kit.Scans) -> None:
    """Every client gets the reply of the old target, and each sample has a result."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(kit.servers())
        config = yaml.safe_load(kit.migration_config(url["oip.grpc"], url["oip.http"]))
        migration = config["migrations"].pop(kit.NAME)
        legacy = {"upstream": "legacy", "model": kit.NAME, "version": "1"}
        config["routes"] = []
        for fault in FAULTS:
            address = await stack.enter_async_context(faulty_server(fault))
            config["upstreams"][fault] = {"url": f"oip+http://{address}"}
            targets = [legacy, {"upstream": fault, "weight": 0}]
            config["routes"].append({"name": fault, "match": {"model": fault}, "targets": targets})
            names = {"route": fault, "old": f"legacy/{kit.NAME}:1", "new": fault}
            config["migrations"][fault] = {**migration, **names, "mirror": {"timeout": "2s"}}
        gateway = await stack.enter_async_context(running(yaml.safe_dump(config)))
        for fault in FAULTS:
            assert len(await kit.classify(gateway, "oip.http", scans[:8], model=fault)) == 8
        for fault in FAULTS:
            found = await kit.evidence(gateway, kit.has_compared(8), fault)
            assert found["outcomes"]["timeout" if fault == "stall" else "new_error"] == 8, fault
            assert kit.balances(found)
        counts = await kit.until(gateway, kit.is_balanced)
        assert kit.total(counts, "gateway_migration_sampled_total") == 8 * len(FAULTS)


async def test_killed_shadow_process_fails_no_call(scans: kit.Scans) -> None:
    """Calls succeed while it is down, it is restarted, and each sample is counted once."""
    async with kit.servers() as url:
        text = kit.migration_config(url["oip.grpc"], url["oip.http"])
        async with running(text) as gateway:
            expected = await kit.classify(gateway, "oip.grpc", scans[:4])
            for _ in range(2):
                restarts = (await kit.metrics(gateway))["gateway_shadow_restarts_total"]
                os.kill(shadow_pid(gateway), signal.SIGKILL)
                found = await kit.classify(gateway, "oip.grpc", scans[:4])
                assert np.array_equal(found, expected)
                await kit.until(
                    gateway,
                    lambda found, restarts=restarts: (  # type: ignore[misc]
                        found["gateway_shadow_restarts_total"] > restarts
                        and found["gateway_shadow_up"] == 1
                    ),
                )
            await kit.classify(gateway, "oip.grpc", scans[:4])
            counts = await kit.until(gateway, kit.is_balanced)
            assert kit.total(counts, "gateway_migration_sampled_total") == 16
            assert kit.total(counts, "gateway_migration_samples_total") >= 4


async def test_stopped_shadow_process_fails_no_call(scans: kit.Scans) -> None:
    """Calls succeed while it is stopped; later they are compared, or dropped and counted."""
    async with kit.servers() as url:
        text = kit.migration_config(url["oip.grpc"], url["oip.http"])
        async with running(text) as gateway:
            pid = shadow_pid(gateway)
            os.kill(pid, signal.SIGSTOP)
            try:
                labels = await kit.classify(gateway, "oip.grpc", scans)
                stopped = await kit.metrics(gateway)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert len(labels) == 450
            assert kit.total(stopped, "gateway_migration_samples_total") == 0
            counts = await kit.until(gateway, kit.is_balanced)
            assert kit.total(counts, "gateway_migration_sampled_total") == 450
            assert kit.total(counts, "gateway_migration_samples_total") > 0


_TWO_MODELS = """
  again: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
routes:
  - name: r
    match: {model: simple}
    targets: [{model: simple}, {model: again, weight: 0}]
migrations:
  m:
    route: r
    old: local/simple
    new: local/again
    sample: {percent: 100}
"""


def test_workers_share_one_shadow_process(tmp_path: Path) -> None:
    """One process compares the calls of both workers and of a replaced worker."""

    def counts() -> dict[str, float]:
        return kit.values(workers_kit.metrics(gateway))

    def are_compared(number: int) -> bool:
        found = counts()
        return kit.is_balanced(found) and kit.total(
            found, "gateway_migration_samples_total"
        ) == float(number)

    def ask_times(number: int) -> None:
        for _ in range(number):
            with closing(workers_kit.connect(gateway)) as connection:
                assert workers_kit.ask(connection) == 200

    with workers_kit.two_workers(tmp_path, more=_TWO_MODELS) as gateway:
        ask_times(20)
        workers_kit.eventually(lambda: are_compared(20))
        workers_kit.end(workers_kit.pids(gateway)[1], signal.SIGKILL)
        workers_kit.eventually(
            lambda: workers_kit.of_workers(gateway, "worker_restarts_total")[1] == 1
        )
        workers_kit.eventually(lambda: workers_kit.of_workers(gateway, "worker_up") == {1: 1, 2: 1})
        ask_times(20)
        workers_kit.eventually(lambda: are_compared(40))
        found = counts()
        assert found['gateway_migration_samples_total{migration="m",outcome="match"}'] == 40
        assert len(workers_kit.events(gateway, "shadow process started")) == 1
        assert gateway.stop() == 0
