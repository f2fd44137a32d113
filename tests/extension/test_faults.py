"""A part of a package that raises costs only its own call, and the log names it."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.extension.kit import Serving, gateway, install, serving

pytestmark = pytest.mark.timeout(300)

PACKAGE = """
from gateway.api import Layer, RuleResult, Setting

FAULT = Setting(key="fault", type=str, default="", places=("route",), help="A fault.")


class Failing:
    def __init__(self, inner):
        self.inner = inner

    def __call__(self, call, /):
        raise ZeroDivisionError("of a policy")


class Transform:
    needs = frozenset()

    def before(self, request, /):
        return None

    def after(self, request, reply, /):
        return reply


class Authoriser:
    async def authorise(self, identity, call, /):
        if call.model is not None and call.model.name == "authoriser":
            raise ZeroDivisionError("of an authoriser")
        return True


class Rule:
    def compare(self, old, new, /):
        raise ZeroDivisionError("of a rule")


def build(inner, at):
    fault = at.setting(FAULT)
    if fault == "build":
        raise ZeroDivisionError("of a builder")
    return Failing(inner.questions) if fault else None


LAYER = Layer(name="Failing", purpose="fails", chain="route", build=build, settings=(FAULT,))
TIMEOUT = Setting(key="timeout", type=str, default="", places=("route",), help="A fault.")
TAKEN = Layer(name="Taken", purpose="fails", chain="route", build=build, settings=(TIMEOUT,))
KIND = Setting(key="kind", type=Failing, default=None, places=("route",), help="A fault.")
TYPED = Layer(name="Typed", purpose="fails", chain="route", build=build, settings=(KIND,))
"""
GROUPS = {
    "gateway.layers": {"failing": "gateway_faulty:LAYER"},
    "gateway.transforms": {"lost": "gateway_faulty:Transform"},
    "gateway.authorisers": {"unsure": "gateway_faulty:Authoriser"},
    "gateway.comparison_rules": {"broken": "gateway_faulty:Rule"},
}
CONFIG = """version: 1
listeners: [{http: "127.0.0.1:0", authoriser: unsure}]
telemetry: {log: {format: json}}
models:
  same: {backend: python, options: {callable: "gateway.backends.examples:identity_int64"}}
routes:
  - {name: policy, match: {model: policy}, fault: call, targets: [{model: same}]}
  - {name: transform, match: {model: transform}, targets: [{model: same, transform: lost}]}
  - {name: plain, targets: [{model: same}]}
"""
BODY = '{"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [1], "data": [1]}]}'


def installed(folder: Path, groups: dict[str, dict[str, str]]) -> Path:
    (folder / "gateway_faulty.py").write_text(PACKAGE)
    install(folder, "gateway-faulty", groups)
    return folder


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    site = installed(tmp_path_factory.mktemp("site"), GROUPS)
    config = site / "gateway.yaml"
    config.write_text(CONFIG)
    with serving(site, config) as found:
        yield found


def status(running: Serving, model: str) -> int:
    connection = HTTPConnection(str(running.addresses["main.http"]), timeout=60)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", BODY)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("policy", "layer 'failing'"),
        ("transform", "transform 'lost'"),
        ("authoriser", "authoriser 'unsure'"),
    ],
)
def test_a_part_that_raises_costs_its_own_call(running: Serving, model: str, part: str) -> None:
    """The call fails as an internal error, others are served, and the log names the part."""
    assert 500 == status(running, model)
    assert "exception" in running.wait_for("internal error", part=part)
    assert 200 == status(running, "same")


@pytest.mark.parametrize(
    ("entry", "config", "message"),
    [
        ("failing = LAYER", CONFIG.replace("fault: call", "fault: build"), "ZeroDivisionError"),
        ("failing = NOTHING", CONFIG, "module 'gateway_faulty' has no 'NOTHING'"),
        ("failing = Rule", CONFIG, "layer 'failing' is a type; expected a gateway.api.Layer"),
        ("taken = TAKEN", CONFIG.replace(", fault: call", ""), "the key 'timeout' of 'route'"),
        ("typed = TYPED", CONFIG.replace(", fault: call", ""), "the key 'kind' of an installed"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(
    tmp_path: Path, entry: str, config: str, message: str
) -> None:
    """The gateway does not start, and one line says which part is wrong, and how."""
    name, _, attribute = entry.split()
    site = installed(tmp_path, {"gateway.layers": {name: f"gateway_faulty:{attribute}"}})
    path = tmp_path / "gateway.yaml"
    path.write_text(config.replace(", transform: lost", "").replace(", authoriser: unsure", ""))
    found = gateway(site, "serve", str(path))
    assert 0 != found.returncode
    assert message in found.stderr
    assert "Traceback" not in found.stderr
