"""The recorded REST exchanges of TensorFlow Serving and KServe V1, against the gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from http.client import HTTPResponse
from io import BytesIO
from typing import Any

import pytest
import pytest_asyncio

from gateway.app import Gateway
from tests.golden.members import AlwaysSent
from tests.integration.asking_kit import running
from tests.integration.tfs_models import GOLDEN, MODELS, recorded

CONFIG = f"""
version: 1
listeners:
  - {{name: tensorflow, http: "127.0.0.1:0", protocols: [tfs]}}
  - name: kserve
    http: "127.0.0.1:0"
    protocols: [tfs]
    options: {{tfs: {{dialect: kserve}}}}
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
{MODELS}
"""
# FP16, BF16 and UINT16 are numbers as others. What the real server wraps or writes raw is refused.
# Our models have no versions, and take any shape; an error of a model is no error of its client.
SENT = AlwaysSent(GOLDEN / "http", recorded("http"))
KSERVE_SENT = AlwaysSent(GOLDEN / "kserve", recorded("kserve"))
OTHER_STATUS = {
    **dict.fromkeys(("075", "082", "085", "102"), 200),
    **dict.fromkeys(("087", "088", "089"), 400),
    "002": 404,
    "086": 501,
    **dict.fromkeys(("119", "120"), 500),
}
OTHER_BODY = ("001", "003", "004", "006", "007", "015", "075", "082", "083", "085", "102")
# The model of the recordings takes one row of objects as features of one table.
KSERVE_STATUS = {
    "010": 400,
    "011": 400,
    "014": 400,
    "015": 400,
    "016": 400,
    "019": 200,
    "021": 200,
    "044": 400,
}
KSERVE = [
    entry
    for entry in recorded("kserve")
    if "/v2/" not in entry["request_line"]
    and not re.search("echo|nan|fail|add_sub", entry["request_line"])
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """Run a gateway with the recorded models, and a listener for each dialect."""
    async with running(CONFIG) as found:
        yield found


class _Socket:
    """What `HTTPResponse` reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> BytesIO:
        """Return a file of the data."""
        return BytesIO(self._data)


async def send(address: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the response to a whole request."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [each for each in head.split(b"\r\n") if not each.lower().startswith(b"connection:")]
    writer.write(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
    data = await reader.read()
    writer.close()
    response = HTTPResponse(_Socket(data))  # type: ignore[arg-type]  # all that it needs
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return response.status, headers, response.read()


def request_of(folder: str, entry: dict[str, Any]) -> bytes:
    """Return a recorded request."""
    found: bytes = (GOLDEN / folder / entry["request"]["file"]).read_bytes()
    return found


def body_of(folder: str, entry: dict[str, Any]) -> bytes:
    """Return the recorded body of a response."""
    found: bytes = (GOLDEN / folder / entry["response"]["file"]).read_bytes()
    return found.partition(b"\r\n\r\n")[2]


def comparable(value: Any) -> Any:
    """Return a document with six digits of each number with a point: the server wrote no more."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return f"{value:.6g}" if isinstance(value, float) else value


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("entry", recorded("http"), ids=lambda entry: entry["name"])
async def test_tensorflow_clients_get_the_recorded_replies(
    gateway: Gateway, entry: dict[str, Any]
) -> None:
    """Status and decoded body are those of the real server; texts of errors are our own."""
    number = entry["name"][:3]
    address = gateway.addresses["tensorflow.http"]
    status, headers, body = await send(address, request_of("http", entry))
    assert OTHER_STATUS.get(number, entry["status"]) == status, body
    assert entry["response_content_type"] == headers.get("content-type")
    assert [] == SENT.missing(entry, status, body)
    if status >= 400:
        assert not body or list(json.loads(body)) == ["error"]
        return
    document = json.loads(body)
    if "model_version_status" in document:  # strict parsers know no other member
        assert [*document] == ["model_version_status"]
    if number not in OTHER_BODY:
        assert comparable(json.loads(body_of("http", entry))) == comparable(json.loads(body))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("entry", KSERVE, ids=lambda entry: entry["name"])
async def test_kserve_clients_get_the_recorded_replies(
    gateway: Gateway, entry: dict[str, Any]
) -> None:
    """Status and body are KServe's; a wrong request is 400 where its models fail with 500."""
    number = entry["name"][:3]
    address = gateway.addresses["kserve.http"]
    status, _, body = await send(address, request_of("kserve", entry))
    assert KSERVE_STATUS.get(number, entry["status"]) == status, body
    assert [] == KSERVE_SENT.missing(entry, status, body)
