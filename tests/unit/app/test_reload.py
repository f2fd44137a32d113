"""Changes of a configuration that a running gateway applies, and the parts that it keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from gateway.api.start_error import StartError
from gateway.app.build.kept_parts import KeptParts
from gateway.app.run.reload import Reloader, changed_keys, check_restart
from gateway.config.load import ConfigError, LoadedConfig, load_text

TEXT = """\
version: 1
workers: 1
listeners:
  - {name: main, http: 8000}
  - {name: other, grpc: 8001, default_model: a}
admin: {address: 9901}
models: {a: {backend: python}}
telemetry: {log: {level: info, format: json, calls_per_second: 5}}
lifecycle: {drain: 5s}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("workers: 1", "workers: 2", "2:10: workers: this change needs a restart"),
        ("http: 8000", "http: 8005", "4:24: listeners[0].http: this change needs a restart"),
        (
            "default_model: a",
            "default_model: b",
            "5:46: listeners[1].default_model: this change needs a restart",
        ),
        ("name: other", "name: new", "5:5: listeners[1]: a new listener: this change needs a"),
        ("name: other", "name: new", "listeners: listener 'other' is missing: this change needs"),
        ("address: 9901", "address: 9902", "6:8: admin: this change needs a restart"),
        ("format: json", "format: console", "telemetry.log.format: this change needs a restart"),
        ("{log: {", "{otlp: {traces: true}, log: {", "telemetry.otlp: this change needs a restart"),
        ("drain: 5s", "online: false", "lifecycle.online: this change needs a restart"),
        ("version: 1", "version: 1\nshared_regions: 3", "shared_regions: this change needs a"),
        # What was removed has no line of its own: the position is that of what held it.
        (
            ", http: 8000",
            ", http: 8000, streams: [{protocol: grps, address: 8003}]",
            "4:39: listeners[0].streams: this",
        ),
        (", default_model: a", "", "5:5: listeners[1].default_model: this change needs a restart"),
        (
            "grpc: 8001",
            "grpc: 8001, limits: {message_bytes: 1MiB}",
            "5:39: listeners[1].limits: this",
        ),
        ("admin: {address: 9901}", "", "1:1: admin: this change needs a restart"),
        (", format: json", "", "telemetry.log.format: this change needs a restart"),
    ],
)
def test_changes_that_need_a_restart_are_rejected(old: str, new: str, expected: str) -> None:
    """The error has the position of the key."""
    with pytest.raises(ConfigError) as raised:
        check_restart(load_text(TEXT).config, load_text(TEXT.replace(old, new)))
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{a: {backend: python}}", "{b: {backend: python}}"),
        ("level: info", "level: debug"),
        ("calls_per_second: 5", "calls_per_second: 6"),
        ("drain: 5s", "drain: 6s"),
        ("version: 1", "version: 1\npolicies: {timeout: 5s}"),
        ("address: 9901", "address: 9901, token: 0123456789abcdef, hosts: [gateway.example]"),
    ],
)
def test_other_changes_need_no_restart(old: str, new: str) -> None:
    """Models, routes, upstreams, policies, log lines and the times of a stop may change."""
    check_restart(load_text(TEXT).config, load_text(TEXT.replace(old, new)))


def build(value: str) -> Callable[[], list[str]]:
    return lambda: [value]


def test_parts_with_an_equal_source_are_kept() -> None:
    """A part stays the same object, unless its source has changed."""
    before = KeptParts()
    same = before.get("upstream", "same", 1, build("same"))
    changed = before.get("upstream", "changed", 1, build("changed"))
    before.get("route", "removed", 1, build("removed"))
    after = KeptParts(before.current)
    assert same is after.get("upstream", "same", 1, build("same"))
    assert changed is not after.get("upstream", "changed", 2, build("changed"))
    after.get("route", "added", 1, build("added"))
    after.get("target", "unnamed", 1, build("unnamed"))
    assert after.changes() == {
        "added": ["route added"],
        "replaced": ["upstream changed"],
        "removed": ["route removed"],
    }
    assert after.has("upstream", "same", same)
    assert not after.has("upstream", "changed", changed)
    assert not after.has("route", "removed", [])


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (StartError("model 'a' is missing"), "failed", "model 'a' is missing"),
        (ZeroDivisionError("of a backend"), "failed", "internal error: ZeroDivisionError"),
    ],
)
async def test_a_failed_reload_keeps_the_current_configuration(
    error: Exception, outcome: str, text: str
) -> None:
    """The configuration in force stays, and the next reload works."""
    old, new = load_text(TEXT), load_text(TEXT.replace("drain: 5s", "drain: 6s"))
    errors: list[Exception] = [error]

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        if errors:
            raise errors.pop()
        return {}

    reloader = Reloader(lambda: new, old, apply, clock=lambda: 5.0)
    result = await reloader.reload()
    assert (outcome, text, old.sha256) == (result.outcome, result.error, result.sha256)
    assert reloader.loaded is old
    result = await reloader.reload()
    assert ("applied", "", new.sha256) == (result.outcome, result.error, result.sha256)
    assert reloader.loaded is new


async def test_retired_keys_are_logged_at_start_and_after_a_reload() -> None:
    """Each has one warning, with the line of the file that is in force now."""
    text = "policies: {sequence_client_header: x-a}"
    old, new = (load_text(f"{TEXT}{lines}{text}\n") for lines in ("", "\n\n"))

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    with capture_logs() as logs:
        async with Reloader(lambda: new, old, apply) as reloader:
            await reloader.reload()
    found = [(each["path"], each["line"]) for each in logs if each["event"] == "retired key"]
    line = TEXT.count("\n") + 1
    key = "policies.sequence_client_header"
    assert [(key, line), (key, line + 2)] == found


async def test_a_file_that_cannot_be_read_in_time_fails_the_reload() -> None:
    """A file system that hangs holds up no further reload, no other work, and no end."""
    old = load_text(TEXT.replace("drain: 5s", "drain: 5s, reload: {timeout: 20ms}"))
    hangs, may_end = [True], threading.Event()
    threads: list[threading.Thread] = []

    def load() -> LoadedConfig:
        threads.append(threading.current_thread())
        if hangs.pop():
            may_end.wait(10)
        return old

    async def apply(_loaded: LoadedConfig, _drained: object) -> dict[str, list[str]]:
        return {}

    reloader = Reloader(load, old, apply, clock=lambda: 5.0)
    result = await reloader.reload()
    assert ("failed", True) == (result.outcome, "lifecycle.reload.timeout" in result.error)
    hangs.append(False)
    assert "applied" == (await reloader.reload()).outcome
    assert (True, True) == (threads[0].is_alive(), threads[0].daemon)
    may_end.set()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "security: {keys: {file: k}}", ["security.keys"]),
        ("security: {rules: [{clients: [a], operations: [all]}]}", "", ["security.rules"]),
        (
            "quotas: {gold: {limit: 1/s}, free: {limit: 1/s}}",
            "quotas: {gold: {limit: 2/s}, free: {limit: 1/s}}",
            ["quotas.gold"],
        ),
        (
            "routes: [{name: score, targets: [{model: a}], timeout: 1s}]",
            "routes: [{name: score, targets: [{model: a}], timeout: 2s}]",
            ["routes.score"],
        ),
        ("routes: [{targets: [{model: a}]}]", "", ["routes.1"]),
        ("clients: {a: {}}", "clients: {b: {}}", ["clients.b", "clients.a"]),
        (
            "policies: {timeout: 5s}",
            "policies: {timeout: 5s, in_flight: 3}",
            ["policies.in_flight"],
        ),
        ("", "policies: {timeout: 9s}", ["policies.timeout"]),
        ("policies: {timeout: 9s}", "", ["policies.timeout"]),
        ("", "policies: {}", []),
        ("", "lifecycle: {drain: 9s}", ["lifecycle.drain"]),
        ("", "telemetry: {log: {level: debug}}", ["telemetry.log"]),
        ("state: {directory: a}", "", ["state.directory"]),
        (
            "routes: [{name: a, targets: [{model: a}]}, {name: b, targets: [{model: a}]}]",
            "routes: [{name: b, targets: [{model: a}]}, {name: a, targets: [{model: a}]}]",
            ["routes"],
        ),
        ("in_flight_bytes: 1MiB", "in_flight_bytes: 2MiB", ["in_flight_bytes"]),
        ("# a comment", "", []),
    ],
)
def test_a_reload_names_the_keys_that_differ(old: str, new: str, expected: list[str]) -> None:
    """By section and name, whatever the section is; parts of the gateway are not all there is."""
    base = "version: 1\nlisteners: [{http: 8000}]\nmodels: {a: {backend: python}}\n"
    assert expected == changed_keys(load_text(base + old).config, load_text(base + new).config)
