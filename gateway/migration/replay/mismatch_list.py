"""MismatchList: a file with every call whose results differ, as JSON or CSV."""

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gateway.ir.texts import json_without_hidden, without_hidden
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.summary import finite
from gateway.migration.compare.tensors import Outcome
from gateway.shadow.records.records import OK, RecordedCall

_COLUMNS: Final = (
    "id",
    "request_id",
    "client_id",
    "at",
    "client",
    "agent",
    "protocol",
    "model",
    "version",
    "outcome",
    "reason",
    "outputs",
    "max_abs",
    "old_code",
    "new_code",
    "error",
)
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
JSON: Final = ".json"
CSV: Final = ".csv"


class MismatchList:
    """Writes the calls as they come, so that any number of them fits.

    Args:
        path: The file; it ends with ".json" or ".csv".

    Raises:
        ValueError: It has another ending.
        OSError: It cannot be created.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in {JSON, CSV}:
            raise ValueError(f"{path} is neither JSON nor CSV; expected a name with .json or .csv")
        self._file = path.open("w", encoding="utf-8", newline="")
        self._write: Callable[[dict[str, Any]], object]
        self._end = ""
        self._count = 0
        if path.suffix == JSON:
            self._file.write("[")
            self._write, self._end = self._write_json, "\n]\n"
        else:
            rows = csv.DictWriter(self._file, _COLUMNS, lineterminator="\n")
            rows.writeheader()
            self._write = lambda row: rows.writerow({key: _cell(row[key]) for key in row})

    def add(
        self, old: RecordedCall, comparison: Comparison, new_code: str, new_error: str = ""
    ) -> None:
        """Write a call if its results differ.

        Args:
            old: The result that was recorded.
            comparison: The comparison of its results.
            new_code: Of the new result, "ok" for a reply.
            new_error: The text of its error.

        Raises:
            OSError: It cannot be written.
        """
        if comparison.outcome is Outcome.MATCH and not comparison.has_failed:
            return
        call, error = old.call, comparison.largest_error
        self._write(
            {
                "id": old.id,
                "request_id": call.request_id,
                "client_id": old.client_id,
                "at": datetime.fromtimestamp(call.at_us / 1e6, UTC).isoformat(),
                "client": call.client,
                "agent": call.agent,
                "protocol": call.protocol,
                "model": call.model,
                "version": call.version,
                "outcome": comparison.outcome.value,
                "reason": comparison.reason,
                "outputs": comparison.different_outputs,
                "max_abs": None if error is None else finite(error),
                "old_code": call.code or OK,
                "new_code": new_code,
                "error": new_error or call.error,
            }
        )
        self._count += 1

    def _write_json(self, row: dict[str, Any]) -> None:
        text = json_without_hidden(
            json.dumps(row, ensure_ascii=False, allow_nan=False, default=str)
        )
        self._file.write(f"{',' if self._count else ''}\n{text}")

    def close(self) -> None:
        """End the file; idempotent.

        Raises:
            OSError: It cannot be written.
        """
        if not self._file.closed:
            with self._file:
                self._file.write(self._end)


def _cell(value: Any) -> str:
    """Return a value of a row for CSV, on one line, and as no formula."""
    if value is None:
        return ""
    text = without_hidden(" ".join(value) if isinstance(value, list) else str(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
