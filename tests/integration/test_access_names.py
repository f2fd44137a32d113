"""The name of a client: in routes, in logs, for upstreams; and credentials nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gateway.access.key_file import load_key_file, save_key_file
from gateway.app import Gateway
from gateway.cli.commands import command_line
from tests.integration.access_kit import (
    KEY,
    NOW,
    OTHER_KEY,
    call,
    configuration,
    control_of,
    exchange,
    key_file,
)
from tests.integration.asking_kit import running
from tests.integration.test_repeated_calls import REQUEST, Replica, served


class Noting(Replica):
    """A server that keeps the headers of its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[dict[str, str]] = []

    async def infer(self, request: web.Request) -> web.Response:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return await super().infer(request)


class Pages(Noting):
    """A server that keeps the headers of the requests that a passthrough sends it."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[dict[str, str]] = []

    async def describe(self, request: web.Request) -> web.Response:
        if request.path != "/page":
            return await super().describe(request)
        self.pages.append({name.lower(): value for name, value in request.headers.items()})
        return web.Response(text="page")


def configured(url: str, *, upstream: Any = None, **changes: Any) -> str:
    document = json.loads(configuration())
    document["telemetry"] = {"log": {"level": "debug", "calls_per_second": 1000}}
    document["upstreams"] = {"server": {"url": url, **(upstream or {})}}
    return json.dumps({**document, **changes})


async def infer(gateway: Gateway, headers: dict[str, str] | None = None) -> Any:
    fields = {"x-api-key": KEY, "content-type": "application/json"} | (headers or {})
    body = json.dumps(REQUEST).encode()
    return await exchange(
        gateway.addresses["main.http"], "/v2/models/m/infer", fields, method="POST", body=body
    )


@pytest.mark.parametrize(
    ("match", "route"),
    [
        ({"clients": ["f*"]}, "first"),
        ({"groups": ["finance", "x"], "tiers": "gold", "headers": {"x-a": "1"}}, "first"),
        ({"clients": ["other", "anonymous"]}, "rest"),
        ({"groups": ["other"]}, "rest"),
        ({"clients": ["fraud"], "tiers": ["silver"]}, "rest"),
    ],
)
async def test_routes_match_clients(tmp_path: Path, match: dict[str, Any], route: str) -> None:
    """By name, group and tier; the log has the name, and the id of the key."""
    key_file(tmp_path)
    async with served(Noting()) as url:
        targets = [{"upstream": "server"}]
        routes = [
            {"name": "first", "match": match, "targets": targets},
            {"name": "rest", "targets": targets, "sticky_by": "client", "share": {"by": "client"}},
        ]
        async with running(configured(url, routes=routes), tmp_path) as gateway:
            with capture_logs() as logs:
                assert (await infer(gateway, {"x-a": "1"})).status == 200
    (line,) = [each for each in logs if each["event"] == "call"]
    assert (line["route"], line["client_name"], line["credential"]) == (route, "fraud", "k1")


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ({}, {}),
        ({"forward_headers": ["*"]}, {"x-client": "forged"}),
        ({"forward_headers": ["x-*", "x-api-key"]}, {"x-client": "forged"}),
        ({"forward_headers": ["a*"]}, {}),
        ({"forward_headers": ["authorization"]}, {"authorization": f"Bearer {KEY}"}),
        ({"client_header": "X-Client"}, {"x-client": "fraud"}),
        ({"client_header": "x-client", "forward_headers": ["*"]}, {"x-client": "fraud"}),
    ],
)
async def test_headers_of_upstreams(
    tmp_path: Path, upstream: dict[str, Any], expected: dict[str, str]
) -> None:
    """A credential is forwarded only by the name `authorization` in full."""
    key_file(tmp_path)
    server = Noting()
    async with (
        served(server) as url,
        running(configured(url, upstream=upstream), tmp_path) as gateway,
    ):
        headers = {"authorization": f"Bearer {KEY}", "x-client": "forged"}
        assert (await infer(gateway, headers)).status == 200
    (found,) = server.headers
    names = ("authorization", "x-api-key", "x-client")
    assert {name: found[name] for name in names if name in found} == expected


async def test_clients_share_no_cache_before_a_client_header(tmp_path: Path) -> None:
    """The reply may depend on the header."""
    path = key_file(tmp_path)
    save_key_file(path, load_key_file(path).added("other", OTHER_KEY, NOW))
    server = Noting()
    models: dict[str, Any] = {"m": {"cache": {}}}
    async with (
        served(server) as url,
        running(
            configured(url, upstream={"client_header": "x-client"}, models=models), tmp_path
        ) as gateway,
    ):
        for key in (KEY, KEY, KEY, OTHER_KEY):
            assert (await infer(gateway, {"x-api-key": key})).status == 200
    assert [each["x-client"] for each in server.headers][-1] == "other"
    assert server.headers[0]["x-client"] == "fraud"


async def test_no_credential_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in logs, captures, the status, the configuration, `explain`, metrics or replies."""
    path, file = key_file(tmp_path), tmp_path / "gateway.yaml"
    secret = "tg_" + "wrong" * 10
    digest = load_key_file(path).keys[0].digest.hex()
    salt = load_key_file(path).salt.hex()
    async with served(Noting()) as url:
        text = configured(
            url,
            upstream={"forward_headers": ["authorization"]},
            capture={"directory": "captures", "payload": "full", "wire": True, "min_free": 0},
        )
        async with running(text, tmp_path) as gateway:
            shown = [str(gateway._graph.loaded.without_secrets())]
            with capture_logs() as logs:
                for headers in (
                    {},
                    {"authorization": f"Bearer {KEY}"},
                    {"x-api-key": secret},
                    {"authorization": f"Bearer {secret}"},
                    {"authorization": f"Bearer a.{secret}.b"},
                ):
                    shown.append(str((await infer(gateway, headers)).body))
                    metadata = [(name, value) for name, value in headers.items()]
                    details = await call(
                        gateway.addresses["main.grpc"],
                        "/inference.GRPCInferenceService/ServerMetadata",
                        metadata=metadata,
                    )
                    shown.append(str(details))
                path.write_text(path.read_text().replace("version: 1", "version: 9"))
                await control_of(gateway).look()
            shown += [str(logs), str(await gateway.status())]
            page, _ = await gateway.page("text/plain")
            shown.append(page.decode())
            shown.append(repr(control_of(gateway)._rules))
    files = [each for each in (tmp_path / "captures").rglob("*") if each.is_file()]
    recorded = b"".join(each.read_bytes() for each in files)
    assert b"fraud" in recorded  # the name of the client, and neither its key nor a token
    shown.append(recorded.decode("latin-1"))
    words = ["explain", str(file), "--client", "fraud", "--operation", "inference"]
    file.write_text(text)
    explained = CliRunner().invoke(command_line(words[:1]), words)
    assert "access: allow" in explained.output
    shown += [explained.output, str(capsys.readouterr())]
    for value in (KEY, secret, digest, salt):
        assert [value in text for text in shown] == [False] * len(shown)


async def test_headers_of_files_are_read_again(tmp_path: Path) -> None:
    """Without a reload; a file that is missing meanwhile leaves the value in force."""
    key_file(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    server = Noting()
    upstream = {
        "headers": {"authorization": "Bearer ${file:secret}"},
        "probe": {"headers": {"x-probe": "${file:secret}"}},
    }
    async with (
        served(server) as url,
        running(configured(url, upstream=upstream), tmp_path) as gateway,
    ):
        assert (await infer(gateway)).status == 200
        secret.write_text("two\n")
        await gateway.renew_headers()
        assert (await infer(gateway)).status == 200
        secret.unlink()
        with pytest.raises(OSError, match="No such file"):
            await gateway.renew_headers()
        assert (await infer(gateway)).status == 200
        config = gateway._graph.config.upstreams["server"]
        assert config.probe.headers == {"x-probe": "two"}
    assert [each["authorization"] for each in server.headers] == [
        "Bearer one",
        "Bearer two",
        "Bearer two",
    ]


@pytest.mark.parametrize(
    ("forwarded", "sent"),
    [([], None), (["x-*", "*"], None), (["Authorization"], f"Bearer {KEY}")],
)
async def test_a_passthrough_gets_the_credential_only_by_name(
    tmp_path: Path, forwarded: list[str], sent: str | None
) -> None:
    """`authorization` passes if `forward_headers` of the upstream names it in full.

    The upstream gets the name of the client too, whatever name the client gave itself.
    """
    key_file(tmp_path)
    server = Pages()
    async with served(server) as url:
        upstream = {"forward_headers": forwarded, "client_header": "X-Client"}
        document = json.loads(configured(url, upstream=upstream))
        document["listeners"][0]["passthrough"] = "server"
        async with running(json.dumps(document), tmp_path) as gateway:
            address = gateway.addresses["main.http"]
            assert 401 == (await exchange(address, "/page")).status
            fields = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "x-client": "other"}
            found = await exchange(address, "/page", fields)
            assert 200 == found.status
    (got,) = server.pages
    assert (sent, "fraud") == (got.get("authorization"), got["x-client"])
    assert "x-api-key" not in got
