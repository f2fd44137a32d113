"""The stock of a process, written again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.migration.callers import inventory
from gateway.migration.callers.inventory import InventoryKeeper, Stock, StockRow


async def test_a_failed_write_is_logged_and_the_next_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect costs one write; the stock is written again at the next time."""
    monkeypatch.setattr(inventory, "SAVE_S", 0.0)
    stock = Stock(tmp_path / "stock-1.json", "full")
    keeper = InventoryKeeper(stock)
    saves, again = [0], asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(_rows: list[StockRow]) -> list[StockRow]:
        saves[0] += 1
        if saves[0] == 2:  # the first is that of the start
            raise RuntimeError("a defect")
        if saves[0] == 3:
            loop.call_soon_threadsafe(again.set)
        return []

    monkeypatch.setattr(stock, "write", write)
    with capture_logs() as logs:
        keeper.start()
        async with asyncio.timeout(45):
            await again.wait()
        await keeper.close()
    assert ["stock not written"] == [each["event"] for each in logs]
