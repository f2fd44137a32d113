"""The log lines of the start: addresses, models, and an example command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.app.admin.running import RunningGateway
from gateway.app.admin.server import start_pages
from gateway.app.check.check import check
from gateway.app.run.announce import (
    example_command,
    log_models,
    log_platforms,
    log_started,
)
from gateway.config.admin import AdminConfig
from gateway.config.load import load_text
from gateway.config.models import ListenerConfig
from gateway.ir.errors import Unavailable
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.protocols.tfs.options import read_options
from gateway.settings.units import Address, StreamAddress
from tests.admin_kit import Process
from tests.fakes import ScriptedService

UP = "upstreams: {up: {url: 'grpc://h:1'}}\n"


def listeners(text: str) -> tuple[ListenerConfig, ...]:
    return load_text(f"version: 1\n{UP}listeners: [{text}]\n").config.listeners


@pytest.mark.parametrize(
    ("listener", "addresses", "model", "command"),
    [
        (
            "{http: 8000}",
            {"main.http": "0.0.0.0:8000"},
            "m",
            "curl http://127.0.0.1:8000/v2/models/m",
        ),
        ("{http: 8000}", {"main.http": "[::]:8000"}, "", "curl http://[::1]:8000/v2"),
        ("{http: 8000, protocols: [trtis]}", {"main.http": "127.0.0.1:8000"}, "m", ""),
        ("{grpc: 8001}", {"main.grpc": "127.0.0.1:8001"}, "m", ""),
        (
            "{http: 8000, tls: {cert: c, key: k}}",
            {"main.http": "h:1"},
            "m",
            "curl https://h:1/v2/models/m",
        ),
    ],
)
def test_the_example_command_matches_the_listener(
    listener: str, addresses: dict[str, str], model: str, command: str
) -> None:
    """It works on the same machine; without Open Inference over HTTP no command is shown."""
    assert command == example_command(listeners(listener), addresses, model)


async def test_the_log_lists_models_and_an_example_command() -> None:
    """The list is cut after twenty names; the command uses the first ready model."""
    entries = [RepositoryEntry("down", "1", ModelState.UNAVAILABLE)]
    entries += [RepositoryEntry(f"m{n}", "1", ModelState.READY) for n in range(30)]
    with capture_logs() as logs:
        await log_models(
            ScriptedService(tuple(entries)), listeners("{http: 1}"), {"main.http": "h:1"}
        )
    found, example = logs
    assert (31, True) == (found["count"], found["models"].endswith("m18 and 11 more"))
    assert "curl http://h:1/v2/models/m0" == example["command"]


@pytest.mark.parametrize(
    ("admin", "address", "metrics"),
    [
        ("{address: off}", False, False),
        ("{address: off, metrics: 8002}", False, True),
        ("{metrics: off}", True, False),
        ("{address: null}", False, True),
        ("{}", True, True),
    ],
)
def test_admin_off_opens_no_port(admin: str, address: bool, metrics: bool) -> None:
    """As with `--admin off`, metrics have a port only if the file sets one."""
    text = f"version: 1\n{UP}listeners: [{{http: 1}}]\nadmin: {admin}\n"
    found = load_text(text).config.admin
    assert isinstance(found, AdminConfig)
    assert (address, metrics) == (found.address is not None, found.metrics is not None)


async def test_a_used_default_metrics_port_is_logged() -> None:
    """The log line has the other address of the page; an explicit port fails."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        free, used = StreamAddress(Address("127.0.0.1", 0)), Address("127.0.0.1", port)
        default = AdminConfig.model_construct(set(), address=free, metrics=used)
        with capture_logs() as logs:
            started = await start_pages(default, RunningGateway(Process()))
        address = started["admin"].address
        await started["admin"].stop()
        assert ["admin"] == [*started]
        assert [
            {
                "event": "port of the metrics is in use",
                "log_level": "info",
                "address": f"127.0.0.1:{port}",
                "instead": f"http://{address}/metrics",
            }
        ] == [line for line in logs if "metrics" in line["event"]]
        explicit = AdminConfig(address=free, metrics=used)
        with pytest.raises(OSError, match=f"metrics: .*{port}"):
            await start_pages(explicit, RunningGateway(Process()))


async def test_the_log_has_the_reason_of_missing_models() -> None:
    """An upstream that cannot be asked is one line, and not a failed task that nobody sees."""
    with capture_logs() as logs:
        await log_models(ScriptedService(Unavailable("no response")), listeners("{http: 1}"), {})
    assert [("models not listed", "no response")] == [
        (each["event"], each["reason"]) for each in logs
    ]


VERTEX = {
    "AIP_MODE": "PREDICTION",
    "AIP_MODE_VERSION": "2.1",
    "AIP_STORAGE_URI": "gs://b",
}


@pytest.mark.parametrize(
    ("protocols", "environment", "events"),
    [
        (
            "[tfs]",
            VERTEX,
            ["platform", "unknown contract of the platform", "models are not fetched"],
        ),
        ("[tfs]", {"AIP_HTTP_PORT": "1", "AIP_MODE_VERSION": "1.0.0"}, ["platform"]),
        ("[tfs]", {"AIP_HTTP_PORT": "8080"}, ["platform", "the platform's calls are not served"]),
        ("[tfs]", {"AIP_STORAGE_URI": "gs://b"}, []),
        ("[graphpipe]", VERTEX, []),
    ],
)
def test_the_log_names_the_platform_of_a_protocol(
    protocols: str, environment: dict[str, str], events: list[str]
) -> None:
    """A listener of the protocol is in a container of the platform if its variable is set."""
    text = f"version: 1\nlisteners: [{{http: 1, protocols: {protocols}}}]\n"
    with capture_logs() as logs:
        log_platforms(load_text(text).config, environment)
    assert events == [each["event"] for each in logs]


CONTAINER = Path(__file__).parents[3] / "config" / "container.yaml"
OTHER = "listeners: [{http: 8000}]"
ROUTES = {
    "AIP_HTTP_PORT": "8080",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/1/deployedModels/2:predict",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2",
}


def test_the_image_serves_the_platform_that_starts_it() -> None:
    """The default configuration has its port and routes, and the log says so; elsewhere it has none."""
    loaded = load_text(CONTAINER.read_text(), environment=ROUTES)
    assert [] == check(loaded)
    (listener,) = loaded.config.listeners
    assert str(listener.http) == "0.0.0.0:8080"
    with capture_logs() as logs:
        log_platforms(loaded.config, ROUTES)
    (line,) = logs
    assert ("platform", "Vertex AI", "8080") == (line["event"], line["name"], line["http_port"])
    assert ROUTES["AIP_PREDICT_ROUTE"] == line["predict_route"]
    elsewhere = load_text(CONTAINER.read_text(), environment={})
    assert [] == check(elsewhere)
    (listener,) = elsewhere.config.listeners
    assert ("0.0.0.0:8000", None) == (str(listener.http), listener.default_model)
    assert read_options(listener.options["tfs"]).vertex is None


def test_ports_and_routes_without_a_listener_are_in_the_log() -> None:
    """A configuration of the user may have other ports and routes."""
    loaded = load_text(f"version: 1\n{UP}{OTHER}")
    with capture_logs() as logs:
        log_platforms(loaded.config, ROUTES)
    assert [", ".join(ROUTES)] == [each["variables"] for each in logs if "variables" in each]


@pytest.mark.parametrize(
    ("accelerator", "expected"), [("off", []), ("on", ["no compiled code for this platform"])]
)
def test_plain_python_ran_without_a_warning(accelerator: str, expected: list[str]) -> None:
    """The start says so where there is no compiled code, unless somebody has switched it off."""
    script = (
        "import sys; sys.modules['gateway._accelerated'] = None\n"
        "from structlog.testing import capture_logs\n"
        "from gateway.app.run.announce import log_plain_python\n"
        "with capture_logs() as logs: log_plain_python()\n"
        "print(*(each['event'] for each in logs), sep=',')"
    )
    environment = {**os.environ, "GATEWAY_ACCELERATOR": accelerator}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ",".join(expected) == done.stdout.strip()


def test_upstreams_of_the_reference_transport_are_named() -> None:
    """Its libraries bound less; one line names all such upstreams, if there are any."""
    text = """
version: 1
listeners: [{http: 8000}]
upstreams:
  a: {url: "oip+http://h:1", transport: TRANSPORT}
  b: {url: "oip+grpc://h:2", transport: TRANSPORT}
  c: {url: "oip+grpc://h:3"}
"""
    for transport, expected in (("reference", ["a, b"]), ("native", [])):
        with capture_logs() as logs:
            log_started(load_text(text.replace("TRANSPORT", transport)).config, {}, workers=2)
        named = [line["upstreams"] for line in logs if line["event"] == "reference transport"]
        assert expected == named
