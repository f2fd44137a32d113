"""QuotaDirectory: the store of quotas for gateways of one machine that hand over to each other.

While both run they share the budgets in a file of their state directory, and the next one goes on
with the counts. Its answers are those of the store of replicas, but nothing is lost on the way.
"""

from __future__ import annotations

import errno
import json
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from gateway.quotas.budget_queue import stored_key
from gateway.quotas.pools import LEASE_S, SILENCE_S, LeaseReply, LeaseRequest
from gateway.settings.private_files import make_directory, private_opener

_GATEWAYS: Final = 2
"""The former and the next one."""

_BUSY_S: Final = 0.1
_LATE_S: Final = 0.05
_LACKING_S: Final = 1.0
_KEPT_S: Final = 3600.0

# `used` is what is granted of a window, or what is left of a bucket; `at` is when it was.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS budgets (
  name TEXT, ends REAL, used REAL, at REAL DEFAULT 0, lacks TEXT DEFAULT '',
  lacking REAL DEFAULT 0, PRIMARY KEY (name, ends));
CREATE TABLE IF NOT EXISTS leases (
  name TEXT, ends REAL, gateway TEXT, own REAL, PRIMARY KEY (name, ends, gateway));
CREATE TABLE IF NOT EXISTS unspent (
  name TEXT, ends REAL, gateway TEXT, amount REAL, at REAL, PRIMARY KEY (name, ends, gateway));
"""
_ADOPT: Final = """
INSERT INTO budgets VALUES (?,?,?,0,'',0)
ON CONFLICT DO UPDATE SET used = max(used, excluded.used)
"""
_SPENT: Final = """
SELECT name, used - coalesce((
  SELECT sum(amount) FROM unspent WHERE unspent.name = budgets.name AND unspent.ends = budgets.ends
), 0), ends FROM budgets WHERE ends > 0
"""


def spent_in(path: Path) -> list[tuple[list[str], float, float]]:
    """Return the counts of a file whose gateways have ended: key, amount and end of each window.

    Raises:
        OSError: The file cannot be used.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_S)) as database:
            return [(json.loads(name), used, ends) for name, used, ends in database.execute(_SPENT)]
    except sqlite3.Error as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


class QuotaDirectory:
    """A file with the budgets of gateways.

    Args:
        path: The file. It begins with the counts of `quotas.json` beside it.
        utc: Seconds since 1970.

    Raises:
        OSError: The file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        utc: Callable[[], float] = time.time,  # noqa: TID251  # calendar windows are those of UTC
    ) -> None:
        self._utc = utc
        make_directory(path.parent)
        with open(path, "ab", opener=private_opener):
            pass
        self._database = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._begin(path.with_name("quotas.json"))
        except sqlite3.Error as error:
            self._database.close()
            raise OSError(errno.EIO, str(error), str(path)) from error

    def _begin(self, earlier: Path) -> None:
        """Make the tables, forget old windows, and take over the counts of another file."""
        execute = self._database.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = OFF")  # a crash of the machine may lose counts
        self._database.executescript(_SCHEMA)
        past = (self._utc() - _KEPT_S,)
        execute("DELETE FROM budgets WHERE 0 < ends AND ends < ?", past)
        execute("DELETE FROM leases WHERE 0 < ends AND ends < ?", past)
        execute("DELETE FROM unspent WHERE 0 < ends AND ends < ?", past)
        with suppress(OSError, ValueError, TypeError):
            for key, used, ends in json.loads(earlier.read_text()):
                row = (json.dumps(key), float(ends), float(used))
                execute(_ADOPT, row)

    def answers(self, gateway: str, questions: Sequence[LeaseRequest]) -> list[LeaseReply]:
        """Move leases between a gateway and the file; safe to call on another thread.

        Raises:
            sqlite3.Error: The file cannot be used.
        """
        now = self._utc()
        self._database.execute("BEGIN IMMEDIATE")
        try:
            replies = [self._moved(gateway, each, now) for each in questions]
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        return replies

    def _moved(self, gateway: str, question: LeaseRequest, now: float) -> LeaseReply:
        limit, key = question.limit, (json.dumps(stored_key(question.key)), question.ends)
        if question.ends and now >= question.ends:
            return LeaseReply(0.0, limit.amount, now, _GATEWAYS, 0.0, is_short=False)
        new = (limit.capacity if limit.is_rate else 0.0, now, "", 0.0)
        with closing(
            self._database.execute(
                "SELECT used, at, lacks, lacking FROM budgets WHERE name = ? AND ends = ?", key
            )
        ) as found:
            used, at, needy, lacking = found.fetchone() or new
        if limit.is_rate:
            room = min(limit.capacity, used + max(0.0, now - at) * limit.rate + question.returned)
        else:
            used -= self._taken_back(key, now, is_late=now - at > SILENCE_S)
            used += self._changed(gateway, key, question.mine) - question.returned
            room = limit.amount - used
        want = max(question.need, question.want)
        granted = max(0.0, min(want, room))
        granted = float(math.floor(granted + 1e-6)) if limit.unit == "calls" else granted
        left = room - granted
        is_partial = granted < question.need
        if is_partial:
            needy, lacking = gateway, now
        self._database.execute(
            "INSERT OR REPLACE INTO budgets VALUES (?,?,?,?,?,?)",
            (*key, left if limit.is_rate else used + granted, now, needy, lacking),
        )
        own = question.mine - question.returned + granted
        self._database.execute(
            "INSERT OR REPLACE INTO leases VALUES (?,?,?,?)", (*key, gateway, own)
        )
        if not limit.is_rate:
            self._database.execute(
                "INSERT OR REPLACE INTO unspent VALUES (?,?,?,?,?)",
                (*key, gateway, max(0.0, own - question.spent), now),
            )
        is_short = now - lacking < _LACKING_S and needy != gateway
        wait_s = (question.need - left) / limit.rate if limit.is_rate else _LATE_S
        return LeaseReply(
            granted,
            left,
            now,
            _GATEWAYS,
            wait_s if is_partial else 0.0,
            is_short,
            max(0.0, left) / _GATEWAYS,
        )

    def _taken_back(self, key: tuple[str, float], now: float, *, is_late: bool) -> float:
        """Take back what gateways held that are silent, and return it.

        Args:
            key: The budget and the end of its window.
            now: Seconds since 1970.
            is_late: No gateway has asked for a while, so that those that live have not either.
        """
        if is_late:
            self._database.execute(
                "UPDATE unspent SET at = ? WHERE name = ? AND ends = ?", (now, *key)
            )
        silent = "FROM unspent WHERE name = ? AND ends = ? AND at < ?"
        with closing(
            self._database.execute(f"SELECT gateway, amount {silent}", (*key, now - LEASE_S))
        ) as found:
            rows = found.fetchall()
        for gateway, amount in rows:
            self._database.execute(
                "UPDATE leases SET own = own - ? WHERE name = ? AND ends = ? AND gateway = ?",
                (amount, *key, gateway),
            )
        if rows:
            self._database.execute(f"DELETE {silent}", (*key, now - LEASE_S))
        return math.fsum(amount for _, amount in rows)

    def _changed(self, gateway: str, key: tuple[str, float], mine: float) -> float:
        """Return what a gateway holds or has spent beyond what the file knows of."""
        with closing(
            self._database.execute(
                "SELECT own FROM leases WHERE name = ? AND ends = ? AND gateway = ?",
                (*key, gateway),
            )
        ) as found:
            row = found.fetchone()
        return mine - (0.0 if row is None else float(row[0]))

    async def aclose(self) -> None:
        """Close the file; idempotent."""
        self._database.close()
