"""Who calls what: counts of calls by client, agent, protocol, model, and inputs or path.

The rows are bounded, and are kept in a file of the state directory for each worker. `merged_rows`
reads all of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import json
import os
from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal

import structlog

from gateway.concurrency.background import start_background
from gateway.concurrency.timeouts import is_set_within
from gateway.config.load import LoadedConfig
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import InferRequest, OpaqueCall
from gateway.ir.identity import ANONYMOUS
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.unread import is_unread, path_of
from gateway.migration.settings import STOCK
from gateway.settings.private_files import make_directory, private_opener, replace_private

log = structlog.get_logger(__name__)

Clients = Literal["full", "prefix", "hash", "none"]
Key = tuple[Any, ...]

MAX_ROWS: Final = 4096
OTHER: Final = "other"
SAVE_S: Final = 10.0
_PATH: Final = 256
_MAX_CLIENTS: Final = 65_536
_VERSION: Final = 1

# Upper bounds of the buckets of durations, seconds: 20 % apart, from 0.1 ms to 2 minutes.
_BOUNDS: Final = tuple(1e-4 * 1.2**number for number in range(78))


class StockRow:
    """The calls of one client for one model.

    Attributes:
        client: Its address, or what the configuration leaves of it.
        client_name: The name that its credential has; "" without one.
        inputs: Such as "features FP32[30]"; the batch axis is left out.
        path: Of calls whose messages the gateway has not read; "" for inferences, and where there
            is none.
        forwarded: Calls that a server got as they came.
        refused: Calls that the gateway itself refused; they are among the errors.
        first_s: Time of the first call, seconds since 1970.
        last_s: Time of the last call.
        buckets: Number of calls by duration.
    """

    __slots__ = (
        "agent",
        "buckets",
        "calls",
        "client",
        "client_name",
        "errors",
        "first_s",
        "forwarded",
        "inputs",
        "last_s",
        "model",
        "path",
        "protocol",
        "refused",
    )

    def __init__(
        self,
        client: str,
        agent: str,
        protocol: str,
        model: str,
        inputs: str,
        client_name: str = "",
        path: str = "",
    ) -> None:
        self.client = client
        self.client_name = client_name
        self.agent = agent
        self.protocol = protocol
        self.model = model
        self.inputs = inputs
        self.path = path
        self.calls = self.errors = self.forwarded = self.refused = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.buckets: dict[int, int] = {}

    @property
    def name(self) -> tuple[str, ...]:
        """What distinguishes it from other rows."""
        return (
            self.client,
            self.agent,
            self.protocol,
            self.model,
            self.inputs,
            self.client_name,
            self.path,
        )

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the durations, at most 20 % too high."""
        remaining = self.calls * 0.99
        for bucket, count in sorted(self.buckets.items()):
            remaining -= count
            if remaining <= 1e-9:  # noqa: PLR2004  # the rounding of the product
                return _BOUNDS[min(bucket, len(_BOUNDS) - 1)]
        return 0.0

    @property
    def per_minute(self) -> float:
        """Calls per minute between the first and the last one."""
        return self.calls / max(self.last_s - self.first_s, 60.0) * 60.0

    def add(self, other: StockRow) -> None:
        """Add the counts of another row."""
        self.first_s = min(self.first_s or other.first_s, other.first_s)
        self.last_s = max(self.last_s, other.last_s)
        self.calls += other.calls
        self.errors += other.errors
        self.forwarded += other.forwarded
        self.refused += other.refused
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def entry(self) -> dict[str, Any]:
        """Return the row as the file has it."""
        names = (name for name in self.__slots__ if name != "buckets")
        entry = {name: getattr(self, name) for name in names}
        return {**entry, "buckets": list(self.buckets.items())}

    def document(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {
            "client": self.client,
            "client_name": self.client_name,
            "agent": self.agent,
            "protocol": self.protocol,
            "model": self.model,
            "inputs": self.inputs,
            "path": self.path,
            "calls": self.calls,
            "per_min": round(self.per_minute, 3),
            "errors": self.errors,
            "forwarded": self.forwarded,
            "refused": self.refused,
            "p99_ms": round(self.p99_s * 1e3, 3),
            "first_seen": _time(self.first_s),
            "last_seen": _time(self.last_s),
        }


class Stock:
    """Counts the calls of one process since they were last written.

    Args:
        path: File of this worker in the state directory.
        clients: What is kept of the addresses of clients.
        max_rows: Further rows are counted as one, `other`.
    """

    def __init__(self, path: Path, clients: Clients = "full", max_rows: int = MAX_ROWS) -> None:
        self._path = path
        self._clients = clients
        self._max_rows = max_rows
        self._rows: dict[Key, StockRow] = {}
        self._other = StockRow(OTHER, "", "", "", "")
        self._addresses: BoundedDict[str, str] = BoundedDict(_MAX_CLIENTS)
        self._by_name: dict[tuple[str, ...], StockRow] = {}
        self._epoch_s = datetime.now(UTC).timestamp() - monotonic()
        self._has_failed = False

    def count(
        self,
        call: InferRequest | OpaqueCall,
        seconds: float,
        is_failed: bool,
        is_refused: bool = False,
        /,
    ) -> None:
        """Count one call, as `CountCall` has it; on the path of every inference."""
        context = call.context
        client, origin = context.client, context.origin
        path, is_read = "", not is_unread(call)
        inputs: tuple[Tensor, ...] = ()
        if is_read and type(call) is InferRequest:
            inputs = call.inputs
        elif origin is not None:
            path = path_of(origin.wire)[:_PATH]
        # A tuple of what is there: its hash costs less than any text of it.
        key: Key = (
            client.address,
            client.identity.name,
            client.agent,
            context.protocol,
            call.model,
            path,
            tuple([(each.name, each.datatype, each.shape) for each in inputs]),
        )
        row = self._rows.get(key)
        if row is None:
            row = self._new_row(key, call, path)
        now = monotonic() + self._epoch_s
        if not row.calls:
            row.first_s = now
        row.last_s = now
        row.calls += 1
        row.errors += is_failed
        row.refused += is_refused
        row.forwarded += not (is_read or is_refused)
        bucket = bisect_left(_BOUNDS, seconds)
        row.buckets[bucket] = row.buckets.get(bucket, 0) + 1

    def _new_row(self, key: Key, call: InferRequest | OpaqueCall, path: str) -> StockRow:
        client, context = call.context.client, call.context
        model = call.model
        name = "" if model is None else model.name + (f":{model.version}" if model.version else "")
        wanted = StockRow(
            self._shown(client.address),
            client.agent[:128],
            context.protocol,
            name[:_PATH],
            "" if path or type(call) is not InferRequest else signature_of(call),
            "" if client.identity is ANONYMOUS else client.identity.name[:128],
            path,
        )
        row = self._by_name.get(wanted.name)
        if row is None:
            if len(self._by_name) >= self._max_rows:
                return self._other
            row = self._by_name[wanted.name] = wanted
        # Batches of another size are other keys of the same row.
        if len(self._rows) >= 4 * self._max_rows:
            self._rows.clear()
        self._rows[key] = row
        return row

    def _shown(self, address: str) -> str:
        """Return what is kept of an address."""
        if self._clients == "full" or not address:
            return address
        if self._clients == "none":
            return ""
        found = self._addresses.get(address)
        if found is None:
            found = _prefix(address) if self._clients == "prefix" else _hash(address)
            self._addresses[address] = found
        return found

    def rows(self) -> list[StockRow]:
        """Return the rows, `other` last if it has calls."""
        other = [self._other] if self._other.calls else []
        return [*self._by_name.values(), *other]

    def take_rows(self) -> list[StockRow]:
        """Return the counts since the last time, and begin with none."""
        rows = self.rows()
        self._rows, self._by_name = {}, {}
        self._other = StockRow(OTHER, "", "", "", "")
        return rows

    def add_rows(self, rows: Iterable[StockRow]) -> None:
        """Count rows again; those that are too many count as `other`."""
        for row in rows:
            known = self._by_name.get(row.name)
            if known is None and row.protocol and len(self._by_name) < self._max_rows:
                self._by_name[row.name] = row
            else:
                (known or self._other).add(row)

    def save(self) -> None:
        """Add the counts since the last time to the file."""
        self.add_rows(self.write(self.take_rows()))

    def write(self, rows: list[StockRow]) -> list[StockRow]:
        """Add rows to those of the file, which another gateway may write, too, and replace it.

        Returns:
            The rows if that failed; an error is logged once.
        """
        whole = Stock(self._path, max_rows=self._max_rows)
        try:
            make_directory(self._path.parent)
            lock = self._path.with_suffix(".lock")
            with open(lock, "ab", opener=private_opener) as file:  # released when it is closed
                fcntl.flock(file, fcntl.LOCK_EX)
                whole.add_rows(_read(self._path))
                whole.add_rows(rows)
                entries = [row.entry() for row in whole.rows()]
                document = {"version": _VERSION, "rows": entries}
                replace_private(self._path, json.dumps(document).encode())
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning("stock not written", file=str(self._path), reason=str(error))
            self._has_failed = True
            return rows
        return []


def stock_path(directory: Path, worker: int) -> Path:
    """Return the file of a worker in the state directory."""
    return directory / f"stock-{worker}.json"


def merged_rows(directory: Path, since_s: float = 0.0) -> list[StockRow]:
    """Return the rows of all workers, the last caller first.

    Args:
        directory: The state directory.
        since_s: Leave out callers that were last seen earlier, seconds since 1970.
    """
    found: dict[tuple[str, ...], StockRow] = {}
    for path in sorted(directory.glob("stock-*.json")):
        for row in _read(path):
            known = found.get(row.name)
            if known is None:
                found[row.name] = row
            else:
                known.add(row)
    rows = [row for row in found.values() if row.last_s >= since_s]
    return sorted(rows, key=lambda row: -row.last_s)


def signature_of(request: InferRequest) -> str:
    """Return names, datatypes and shapes of the inputs, such as "features FP32[30]"."""
    texts = []
    for tensor in request.inputs:
        datatype = "" if tensor.datatype is None else tensor.datatype.name
        shape = tensor.shape
        if shape is not None and request.batch_size is None and len(shape) > 1:
            shape = shape[1:]
        axes = "" if shape is None else f"[{','.join(map(str, shape))}]"
        texts.append(f"{tensor.name} {datatype}{axes}".strip())
    return ", ".join(texts)[:512]


def _read(path: Path) -> Iterable[StockRow]:
    try:
        document = json.loads(path.read_text())
        rows = []
        for entry in document["rows"]:
            names = ("client", "agent", "protocol", "model", "inputs")
            row = StockRow(*(str(entry[name]) for name in names))
            row.client_name, row.path = (str(entry.get(it, "")) for it in ("client_name", "path"))
            row.forwarded, row.refused = (int(entry.get(it, 0)) for it in ("forwarded", "refused"))
            row.calls, row.errors = int(entry["calls"]), int(entry["errors"])
            row.first_s, row.last_s = float(entry["first_s"]), float(entry["last_s"])
            row.buckets = {int(bucket): int(count) for bucket, count in entry["buckets"]}
            rows.append(row)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("stock not read", file=str(path), reason=str(error))
        return []
    return rows


def _prefix(address: str) -> str:
    try:
        bits = 24 if ipaddress.ip_address(address).version == 4 else 48  # noqa: PLR2004
        return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))
    except ValueError:
        return ""


# A new key in each process: an address cannot be found by trying all of them.
_HASH_KEY: Final = os.urandom(16)


def _hash(address: str) -> str:
    return blake2b(address.encode(), digest_size=6, key=_HASH_KEY).hexdigest()


def _time(seconds: float) -> str | None:
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


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
