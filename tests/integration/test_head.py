"""HEAD where there is GET: the same head, and no body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.access_kit import configuration
from tests.integration.asking_kit import running

PATHS = [
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m", "/v2/models/m/ready",
    "/v2/models/m/config", "/v2/models/stats", "/v2/systemsharedmemory/status", "/v2/logging",
    "/api/health/live", "/api/health/ready", "/api/status", "/api/status/m", "/v1/models",
    "/v1/models/m", "/v1/models/m/metadata", "/ping", "/version", "/health", "/models",
    "/grps/v1/health/live", "/grps/v1/metadata/server", "/metrics", "/no/such/path",
    "/v2/models/m/infer",
]  # fmt: skip


async def ask(address: str, method: str, path: str) -> tuple[str, Mapping[str, str], bytes]:
    """Return the status line, the headers and all bytes after them."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(60):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    return status, {name: fields[name] for name in fields if name not in DIFFERENT}, body


DIFFERENT = {"date", "nv-status", "x-request-id", "content-length", "transfer-encoding"}
"""They differ between any two requests; texts of errors have the id."""


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_head_was_refused_where_there_is_get(transport: str, tmp_path: Path) -> None:
    """Each path of a protocol replies to HEAD as to GET; what changes the server does not."""
    document = json.loads(configuration(transport, public_health=True))
    document["listeners"][0] |= {"metrics": True}
    async with running(json.dumps(document), tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        for path in PATHS:
            status, fields, _ = await ask(address, "GET", path)
            found, head_fields, body = await ask(address, "HEAD", path)
            assert (path, status, b"") == (path, found, body)
            assert fields == head_fields, path
        status, _, _ = await ask(address, "HEAD", "/grps/v1/health/online")
        assert " 405 " in status


CHANGING = [
    "/grps/v1/health/online", "/grps/v1/infer/predict", "/grps/v1/metadata/model", "/invocations",
    "/v1/models/m:predict", "/v1/completions", "/predictions/m", "/graphpipe/m", "/",
    "/api/infer/m", "/api/modelcontrol/load/m", "/api/v1.0/predictions",
]  # fmt: skip


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_allow_lists_each_method_that_is_served(transport: str, tmp_path: Path) -> None:
    """A response of 405 names the methods that are not 405, HEAD among them, and no other one."""
    document = json.loads(configuration(transport, public_health=True))
    document["listeners"][0] |= {"metrics": True}
    async with running(json.dumps(document), tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        for path in (*PATHS, *CHANGING):
            status, fields, _ = await ask(address, "PATCH", path)
            if " 405 " not in status:
                continue
            served = set()
            for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS"):
                found, _, _ = await ask(address, method, path)
                served |= set() if " 405 " in found else {method}
            assert (path, {*fields["allow"].upper().split(", ")}) == (path, served)
