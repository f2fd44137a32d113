"""An installed package extends the gateway by entry points alone, and is used from YAML alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from tests.extension.kit import HERE, Serving, install_toy, serving
from tests.extension.readers import discovered

pytestmark = pytest.mark.timeout(300)

Change = tuple[str, str, str, str]
"""A text of the configuration, another one, the path of its key, and a part of the message."""

CONFIG = """version: 1
listeners: [{http: "127.0.0.1:0", protocols: [toy, oip], authoriser: no_secrets}]
admin: {address: "127.0.0.1:0"}
lifecycle: {pre_stop: 0s}
security: {authenticator: by_header}
telemetry: {log: {format: json}}
policies: {max_elements: 6}
models:
  same: {backend: python, options: {callable: "gateway.backends.examples:identity_int64"}}
routes:
  - {name: small, match: {model: small}, max_elements: 2, targets: [{model: same}]}
  - {name: twice, match: {model: twice}, targets: [{model: same, transform: doubled}]}
  - {name: plain, targets: [{model: same}]}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("site")
    install_toy(found)
    return found


@pytest.fixture(scope="module")
def running(site: Path) -> Iterator[Serving]:
    config = site / "gateway.yaml"
    config.write_text(CONFIG)
    with serving(site, config) as found:
        yield found


def invoke(site: Path, *arguments: str) -> Result:
    """Run a command of the gateway that finds the package."""
    with discovered(site):
        return CliRunner().invoke(command_line(arguments[:1]), arguments)


def post(running: Serving, model: str, body: str, client: str = "guest") -> tuple[int, str]:
    connection = HTTPConnection(str(running.addresses["main.http"]), timeout=60)
    try:
        connection.request("POST", f"/toy/{model}", body, {"x-toy-client": client})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_package_is_small() -> None:
    """Protocol, policy, transform, rule, authoriser, page and entry points have 150 lines at most."""
    others = {"authenticator.py", "sink.py"}
    parts = [path for path in (HERE / "gateway_toy").glob("*.*") if path.name not in others]
    files = [HERE / "pyproject.toml", *parts]
    lines = [line.strip() for path in files for line in path.read_text("utf-8").splitlines()]
    assert len([line for line in lines if line and not line.startswith('"""')]) <= 150


def test_the_schema_has_its_key(site: Path) -> None:
    """`gateway schema` has the key of the policy in both places, with its help."""
    found = invoke(site, "schema")
    assert "" == found.stderr
    definitions = json.loads(found.stdout)["$defs"]
    for section in ("PoliciesConfig", "RouteConfig"):
        assert (
            "Largest number of elements"
            in definitions[section]["properties"]["max_elements"]["description"]
        )
    assert "max_elements" not in definitions["TargetConfig"]["properties"]


def test_the_layers_have_its_policy(site: Path) -> None:
    """`gateway explain --layers` shows it in its place, before the limits of the route."""
    names = [line.split()[0] for line in invoke(site, "explain", "--layers").stdout.splitlines()]
    assert names.index("MaxElements") == names.index("CallLimits") - 1


WRONG = (
    ("max_elements: 6", "max_elements: 0", "policies.max_elements", "is 0; expected at least"),
    ("by_header", "by_name", "security.authenticator", "expected one of by_header"),
    ("no_secrets", "nobody", "listeners[0].authoriser", "expected one of no_secrets"),
    ("doubled", "tripled", "routes[1].targets[0].transform", "expected one of doubled"),
)
UNTYPED = (
    ("max_elements: 6", "max_elements: x", "policies.max_elements", "expected a whole number"),
)


@pytest.mark.parametrize("changes", [WRONG, UNTYPED], ids=["values", "type"])
def test_its_keys_are_checked(site: Path, tmp_path: Path, changes: Sequence[Change]) -> None:
    """`gateway validate` names the key of each wrong value, and what the package expects."""
    check_keys(site, tmp_path, CONFIG, changes)


def check_keys(site: Path, folder: Path, text: str, changes: Sequence[Change]) -> None:
    """Check that `gateway validate` names the key of each change, and has a part of its message."""
    for old, new, _, _ in changes:
        text = text.replace(old, new)
    config = folder / "gateway.yaml"
    config.write_text(text)
    found = invoke(site, "validate", str(config))
    assert 1 == found.exit_code, found
    lines = found.output.splitlines()
    for _, _, path, message in changes:
        assert [line for line in lines if f" {path}: " in line and message in line], (path, lines)


def test_a_gateway_serves_its_protocol(running: Serving) -> None:
    """A client of the protocol reaches a model of the gateway."""
    assert (200, "1 2 -3") == post(running, "same", "1 2 -3")
    assert (400, "the body is no list of integers; expected `1 2 3`") == post(running, "same", "x")


def test_its_policy_limits_each_route(running: Serving) -> None:
    """The value of the route holds, else the one of `policies`; a metric counts rejections."""
    assert (200, "1 2") == post(running, "small", "1 2")
    assert (413, "the inputs have 3 elements; expected at most 2") == post(
        running, "small", "1 2 3"
    )
    assert 413 == post(running, "same", "1 2 3 4 5 6 7")[0]
    page = get(running, "/metrics")[1]
    assert 'toy_rejected_total{route="small"} 1.0' in page
    assert 'toy_rejected_total{route="plain"} 1.0' in page


def test_its_authoriser_decides(running: Serving) -> None:
    """A call that it denies is refused, and others are served."""
    assert (403, "the client 'guest' may not do this") == post(running, "secret", "1")
    assert 200 == post(running, "plain", "1")[0]


def test_its_authenticator_names_the_client(running: Serving) -> None:
    """The client has the name that it finds, or is refused before its body is read."""
    assert "the client 'ann' may not do this" in post(running, "secret", "1", "ann")[1]
    assert "eve is not welcome" in post(running, "plain", "1", "eve")[1]


def test_its_transform_changes_requests(running: Serving) -> None:
    """The target of one route gets twice the values."""
    assert (200, "2 4 -6") == post(running, "twice", "1 2 -3")


def get(running: Serving, path: str) -> tuple[int, str]:
    connection = HTTPConnection(str(running.addresses["admin"]), timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_its_page_is_in_the_menu(running: Serving) -> None:
    """A page shows keys of the package, and other pages lead to it."""
    status, page = get(running, "/ui/limits")
    assert 200 == status
    assert "routes.0.max_elements: 2" in page
    assert 'href="/ui/limits"' in get(running, "/ui/")[1]


def test_a_page_that_fails_costs_its_own_request(running: Serving) -> None:
    """The log names the path, and other pages are served."""
    assert 500 == get(running, "/api/v1/toy")[0]
    assert "ZeroDivisionError" in str(running.wait_for("internal error", path="/api/v1/toy"))
    assert 200 == get(running, "/ui/")[0]


def test_a_reload_puts_its_key_in_force(site: Path, running: Serving) -> None:
    """A changed value holds without a restart."""
    config = site / "gateway.yaml"
    config.write_text(CONFIG.replace("max_elements: 2", "max_elements: 3"))
    running.reload()
    assert {"replaced": ["route small"]}.items() <= running.wait_for(
        "configuration reloaded"
    ).items()
    assert (200, "1 2 3") == post(running, "small", "1 2 3")
