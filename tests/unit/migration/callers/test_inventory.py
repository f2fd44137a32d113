"""The inventory of callers: rows, bounds, stored addresses, and files."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.cli.commands import run
from gateway.ir.calls import InferRequest, InferResponse, ServerLiveRequest, StreamInferRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.ir.errors import Cancelled, NotFound
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.ir.tensors.tensor import array_tensor
from gateway.migration.callers.inventory import Stock, merged_rows, stock_path
from gateway.policies.observe import Observe
from tests.fakes import FakeClock, FakeStream, ScriptedService


def request(
    address: str = "10.2.0.17", model: str = "fraud", batch: int = 1, version: str = ""
) -> InferRequest:
    return InferRequest(
        model=ModelRef(model, version),
        context=Context(protocol="oip.http", client=Client(address, "requests/2.19")),
        inputs=(array_tensor("features", np.zeros((batch, 30), np.float32)),),
    )


def test_calls_are_counted_by_caller(tmp_path: Path) -> None:
    """A row has the client, its protocol, the model with its version, and the inputs."""
    stock = Stock(stock_path(tmp_path, 1))
    for batch in (1, 2, 8):
        stock.count(request(batch=batch), 0.004, False)
    stock.count(request(version="7"), 0.004, True)
    first, second = (row.document() for row in stock.rows())
    assert (first["client"], first["agent"], first["protocol"]) == (
        "10.2.0.17",
        "requests/2.19",
        "oip.http",
    )
    assert (first["model"], first["inputs"], first["calls"]) == ("fraud", "features FP32[30]", 3)
    assert (second["model"], second["errors"]) == ("fraud:7", 1)
    assert 4.0 <= first["p99_ms"] <= 4.8


def test_rows_are_bounded(tmp_path: Path) -> None:
    """Further callers share one row, and no call is lost."""
    stock = Stock(stock_path(tmp_path, 1), max_rows=3)
    for number in range(20):
        stock.count(request(f"10.0.0.{number}"), 0.001, False)
    rows = stock.rows()
    assert [row.client for row in rows][3:] == ["other"]
    assert sum(row.calls for row in rows) == 20


@pytest.mark.parametrize(
    ("clients", "expected"), [("full", "10.2.0.17"), ("prefix", "10.2.0.0/24"), ("none", "")]
)
def test_addresses_are_stored_as_configured(tmp_path: Path, clients: Any, expected: str) -> None:
    """An address is stored completely, as its network, or not at all."""
    stock = Stock(stock_path(tmp_path, 1), clients)
    stock.count(request(), 0.001, False)
    assert [row.client for row in stock.rows()] == [expected]


def test_addresses_are_hashed(tmp_path: Path) -> None:
    """A hash distinguishes clients and contains no address."""
    stock = Stock(stock_path(tmp_path, 1), "hash")
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
        stock.count(request(address), 0.001, False)
    assert len(stock.rows()) == 2
    stock.save()
    assert "10.0.0" not in stock_path(tmp_path, 1).read_text()


def test_counts_survive_a_restart_and_are_merged(tmp_path: Path) -> None:
    """A worker continues its file, and the files of all workers are merged."""
    for _ in range(2):
        stock = Stock(stock_path(tmp_path, 1))
        stock.count(request(), 0.001, False)
        stock.save()
    other = Stock(stock_path(tmp_path, 2))
    other.count(request(), 0.1, True)
    other.save()
    (row,) = merged_rows(tmp_path)
    assert (row.calls, row.errors) == (3, 1)
    assert row.p99_s >= 0.1
    assert merged_rows(tmp_path, since_s=row.last_s + 1) == []
    assert oct(stock_path(tmp_path, 1).stat().st_mode & 0o777) == "0o600"


def test_two_gateways_that_hand_over_count_into_one_file(tmp_path: Path) -> None:
    """Neither replaces what the other has written, and a write that fails loses nothing."""
    former, following = (Stock(stock_path(tmp_path, 1)) for _ in range(2))
    for stock in (former, following, former, following):
        stock.count(request(), 0.001, False)
        stock.save()
    stock_path(tmp_path, 1).rename(tmp_path / "kept")
    stock_path(tmp_path, 1).mkdir()
    former.count(request(), 0.001, False)
    former.save()
    stock_path(tmp_path, 1).rmdir()
    (tmp_path / "kept").rename(stock_path(tmp_path, 1))
    former.save()
    assert [5] == [row.calls for row in merged_rows(tmp_path)]


@pytest.mark.parametrize("text", ["", "{", '{"version": 1}', '{"version": 1, "rows": [{}]}', "[]"])
def test_a_damaged_file_is_ignored(tmp_path: Path, text: str) -> None:
    """It is logged, and its rows are dropped."""
    stock_path(tmp_path, 1).write_text(text)
    with capture_logs() as logs:
        assert merged_rows(tmp_path) == []
    assert [each["event"] for each in logs] == ["stock not read"]


def test_a_truncated_file_is_ignored(tmp_path: Path) -> None:
    """No prefix of a file raises."""
    stock = Stock(stock_path(tmp_path, 1))
    stock.count(request(), 0.001, False)
    stock.save()
    text = stock_path(tmp_path, 1).read_text()
    assert json.loads(text)["version"] == 1
    for cut in random.Random(1).sample(range(len(text)), 40):  # noqa: S311
        stock_path(tmp_path, 1).write_text(text[:cut])
        assert merged_rows(tmp_path) == []


def test_an_unwritable_directory_is_logged_once(tmp_path: Path) -> None:
    """Calls never fail because of it."""
    (tmp_path / "file").write_text("")
    stock = Stock(stock_path(tmp_path / "file", 1))
    with capture_logs() as logs:
        for _ in range(2):
            stock.count(request(), 0.001, False)
            stock.save()
    assert [each["event"] for each in logs] == ["stock not written"]


async def test_observe_reports_inferences_with_latency_and_outcome() -> None:
    """Replies, errors and streams are reported once, and other calls are not."""
    clock = FakeClock()
    seen: list[tuple[float | bool, ...]] = []
    reply = InferResponse(model=ModelRef("m"), outputs=())
    service = ScriptedService(reply, NotFound("gone"), FakeStream([reply, NotFound("late")]), True)
    layer = Observe(
        service,
        lambda _record: None,
        on_call=lambda _, *ended: seen.append(ended),
        clock=clock,
    )
    assert await layer(request()) is reply
    with pytest.raises(NotFound):
        await layer(request())
    items = await layer(StreamInferRequest(request=request()))
    clock.now += 2
    assert await anext(items) is reply
    assert len(seen) == 2
    with pytest.raises(NotFound):
        await anext(items)
    assert await layer(ServerLiveRequest()) is True
    assert seen == [(0.0, False, False), (0.0, True, True), (2.0, True, True)]


async def test_a_cancelled_inference_is_no_error_of_its_caller() -> None:
    """It counts as a call, whether its client left or the server cancelled it."""
    seen: list[bool] = []
    service = ScriptedService(asyncio.CancelledError(), Cancelled("gone"))
    layer = Observe(
        service,
        lambda _record: None,
        on_call=lambda _call, _seconds, failed, _refused=False: seen.append(failed),
    )
    for kind in (asyncio.CancelledError, Cancelled):
        with pytest.raises(kind):
            await layer(request())
    assert [False, False] == seen


def test_rows_have_the_names_of_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file keeps them, files without names are read, and the command sums by them."""
    stock = Stock(stock_path(tmp_path, 1))
    for name, address in (("fraud", "10.0.0.1"), ("fraud", "10.0.0.2"), ("", "10.0.0.3")):
        identity = Identity(name) if name else ANONYMOUS
        call = request(address)
        client = Client(address, "requests/2.19", identity)
        stock.count(call.with_context(client=client), 0.001, False)
    stock.save()
    path = stock_path(tmp_path, 1)
    document = json.loads(path.read_text())
    for row in document["rows"]:
        row.pop("client_name")
    stock_path(tmp_path, 2).write_text(json.dumps(document))
    names = [row.client_name for row in merged_rows(tmp_path)]
    assert sorted(names) == ["", "", "", "fraud", "fraud"]
    assert run(["stock", str(tmp_path), "--by", "client", "-o", "json"]) == 0
    found = {row["client"]: row["calls"] for row in json.loads(capsys.readouterr().out)}
    assert found == {"fraud": 2, "10.0.0.1": 1, "10.0.0.2": 1, "10.0.0.3": 2}
