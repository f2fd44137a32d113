"""AuditLog: a line for each change, each view of payloads and each refusal of the admin port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson
import structlog

from gateway.api.admin import AdminNeed
from gateway.config.admin import AdminConfig
from gateway.telemetry.log.line_writer import FileOutput, LineWriter
from gateway.telemetry.log.logs import cut_values
from gateway.wire.http import HttpRequest

log = structlog.get_logger(__name__)

_WAIT_S: Final = 1.0
_GATHER_S: Final = 0.01


NO_FACTS: Final[Mapping[str, Any]] = MappingProxyType({})

_RESULT: Final = ("outcome", "sha256_before", "sha256", "changes", "error")
_MAX_BODY: Final = 4096


def facts_of(document: object, body: bytes = b"") -> dict[str, Any]:
    """Return what a line tells about a change.

    Args:
        document: The JSON of the response.
        body: That of the request, which names the endpoint or the weights. A larger one than 4 KiB,
            and one that is no JSON, is left out.
    """
    found: dict[str, Any] = {}
    if 0 < len(body) <= _MAX_BODY:
        with suppress(orjson.JSONDecodeError):
            found["body"] = orjson.loads(body)
    if isinstance(document, Mapping):
        found |= {key: document[key] for key in _RESULT if key in document}
    return found


class AuditLog:
    """A file with a JSON line for each entry.

    Args:
        path: The file, which lines are appended to.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_late = False
        self._writer = LineWriter(
            FileOutput(path), _GATHER_S, on_failure=self._on_failure, on_recovery=_on_recovery
        )

    async def write(
        self,
        wire: HttpRequest,
        name: str | None,
        role: AdminNeed,
        status: int,
        facts: Mapping[str, Any] = NO_FACTS,
    ) -> None:
        """Write a line, and wait until the file has it, or for a second; never raises.

        Once it was not written in time, no request waits until the file takes lines again. The
        arguments are those of `put`.
        """
        self.put(wire, name, role, status, facts)
        if self._is_late:
            self._is_late = not self._writer.flush(0)
        else:
            self._is_late = not await asyncio.to_thread(self._writer.flush, _WAIT_S)

    def put(
        self,
        wire: HttpRequest,
        name: str | None,
        role: AdminNeed,
        status: int | None,
        facts: Mapping[str, Any] = NO_FACTS,
    ) -> None:
        """Write a line soon; never waits and never raises.

        Args:
            wire: The request.
            name: The name of its token, or `local`; None for another caller.
            role: What the request needs.
            status: The HTTP status of the response; None if the client left before it.
            facts: What was asked for, and what has changed.
        """
        entry = {
            "name": name,
            "address": wire.client.address,
            "role": role.value,
            "method": wire.method,
            "path": wire.path,
            "status": status,
            **facts,
        }
        self._put(entry)

    def put_reload(self, cause: str, document: Mapping[str, Any], status: int) -> None:
        """Write a line about a reload that no request asked for, but *cause*."""
        who = {"name": cause, "address": "", "role": AdminNeed.OPERATE.value}
        self._put({**who, "method": "", "path": "/reload", "status": status, **facts_of(document)})

    def _put(self, entry: Mapping[str, Any]) -> None:
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        self._writer.put(orjson.dumps(cut_values(None, "", entry)) + b"\n")

    def reopen(self) -> None:
        """Open the file again."""
        self._writer.reopen()

    def close(self) -> None:
        """Write the lines that wait, then close the file; does not wait for that. Idempotent."""
        self._writer.close()

    def _on_failure(self, reason: str) -> None:
        log.error("audit log not written", path=str(self._path), reason=reason)


def _on_recovery(count: int) -> None:
    log.error("lines of the audit log are missing", count=count)


def open_audit(config: AdminConfig | None, directory: Path) -> AuditLog | None:
    """Return the audit log of a configuration; None for none.

    Raises:
        OSError: The file cannot be opened.
    """
    if config is None or config.audit is None:
        return None
    return AuditLog(directory / config.audit)
