"""InventoryKeeper: writes who calls one process what."""

from __future__ import annotations

import asyncio

import structlog

from gateway.concurrency.background import start_background
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import LoadedConfig
from gateway.migration.callers.inventory import SAVE_S, Stock, stock_path
from gateway.migration.settings import STOCK

log = structlog.get_logger(__name__)


class InventoryKeeper:
    """Writes the stock of one process every 10 seconds.

    Args:
        stock: What to write.
    """

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, loaded: LoadedConfig, worker: int) -> InventoryKeeper | None:
        """Return the keeper of a configuration; None if stock-taking is off."""
        stock, state = STOCK.of(loaded.config), loaded.config.state
        if stock is None or state is None:
            return None
        path = stock_path(loaded.directory / state.directory, worker)
        return cls(Stock(path, stock.clients))

    def start(self) -> None:
        """Begin to write; the counts of earlier processes stay in the file."""
        self.stock.save()
        self._task = start_background(self._run(), "stock")

    async def close(self) -> None:
        """Write a last time, and stop; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()  # what a thread writes at the moment is written once
            await task
            await self._save()

    async def _save(self) -> None:
        """Write the counts on a thread, and take them for the file on this one."""
        rows = self.stock.take_rows()
        try:
            rows = await asyncio.to_thread(self.stock.write, rows)
        finally:
            self.stock.add_rows(rows)

    async def _run(self) -> None:
        while not await is_set_within(self._stopping, SAVE_S):
            try:
                await self._save()
            except Exception:  # a defect: the next time may succeed
                log.exception("stock not written")
