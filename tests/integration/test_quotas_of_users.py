"""Quotas in each place: of root and of a service user, one process and two workers, with and without a store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from shutil import rmtree

import pytest

from tests.integration.cli_kit import Running
from tests.integration.cli_kit import gateway as command
from tests.integration.redis_kit import serving_redis
from tests.integration.users_kit import ROOT, USER, serving_as
from tests.integration.workers_kit import BODY

pytestmark = [
    pytest.mark.slow,  # apt-get may install Redis first
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process of another user"),
]

CONFIG = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0"}}
quotas:
  day: {{limit: 6/day, by: none}}
  seen: {{limit: 3/day, by: none, mode: shadow}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
lifecycle: {{pre_stop: 0s, hand_over: {hand_over}}}
{more}
"""
STORES = {
    "none": ("false", ""),
    "state": ("false", "state: {directory: state}"),
    "handed over": ("true", "state: {directory: state}"),
    "redis": ("false", "quota_store: {url: REDIS, timeout: 1s}"),
}
"""What counts survive a restart in, if anything."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that each user reads; those of pytest are closed to other users."""
    found = Path(tempfile.mkdtemp())
    found.chmod(0o755)
    try:
        yield found
    finally:
        rmtree(found)


def statuses(running: Running, calls: int) -> list[int]:
    """Return the statuses of calls, each on a connection of its own."""
    found = []
    for _ in range(calls):
        with closing(HTTPConnection(running.addresses["main.http"], timeout=60)) as connection:
            connection.request("POST", "/v2/models/simple/infer", BODY)
            response = connection.getresponse()
            response.read()
            found.append(response.status)
    return found


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("user", [ROOT, USER], ids=["root", "service"])
def test_quotas_are_the_same_in_each_place(
    folder: Path, user: int, workers: int, store: str
) -> None:
    """Six calls of a day pass, a shadow quota refuses none, and a restart keeps what it can."""
    hand_over, more = STORES[store]
    with ExitStack() as stack:
        if store == "redis":
            redis = stack.enter_context(serving_redis(folder))
            redis.path.chmod(0o777)
            more = more.replace("REDIS", redis.url)
        (folder / "gateway.yaml").write_text(
            CONFIG.format(workers=workers, hand_over=hand_over, more=more)
        )
        (folder / "state").mkdir()
        os.chown(folder / "state", user, user)
        for is_second in (False, True):
            with serving_as(user, folder) as running:
                admitted = statuses(running, 10).count(200)
                shown = command("quotas", "--admin", running.addresses["admin"])
                assert running.stop() == 0
            (folder / "spare").rmdir()
            assert (6 if not is_second or store == "none" else 0) == admitted
            assert 0 == shown.returncode, shown.stderr
            used = {words[0]: words for words in map(str.split, shown.stdout.splitlines()) if words}
            assert "6" in used["day"]
            assert "shadow" in used["seen"]
        owners = {each.stat().st_uid for each in (folder / "state").iterdir()}
        assert owners <= {user}
