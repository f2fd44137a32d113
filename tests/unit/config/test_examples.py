"""The example files in config/: each passes the checks of `gateway validate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app import check
from gateway.cli.explanation import explain_call
from gateway.config.load import load_file
from gateway.protocols.graphpipe.options import STATUS, read_options

FOLDER = Path(__file__).parents[3] / "config"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
OF_MIGRATION = {"events"}  # examples with keys of the migration kit
EACH_EXAMPLE = [
    pytest.param(
        path, id=path.stem, marks=[pytest.mark.migration] if path.stem in OF_MIGRATION else []
    )
    for path in EXAMPLES
]


def test_each_use_has_an_example() -> None:
    """The folder has at least these examples."""
    names = {path.stem for path in EXAMPLES}
    assert {"demo", "graphpipe", "grps", "routing", "sidecar", "testing"} <= names


@pytest.mark.parametrize("path", EACH_EXAMPLE)
def test_example_is_valid(path: Path) -> None:
    """An example has no problems, with an empty environment."""
    assert [] == check(load_file(path, environment={}))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_names_its_schema(path: Path) -> None:
    """The first line names the JSON Schema in gateway/config for editors."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    prefix = "# yaml-language-server: $schema="
    assert first.startswith(prefix)
    assert (FOLDER / first.removeprefix(prefix)).resolve().name == "schema.json"
    assert (FOLDER / first.removeprefix(prefix)).is_file()


@pytest.mark.parametrize(
    ("model", "version", "protocol", "headers", "route"),
    [
        ("fraud", "", "oip.http", {}, "fraud"),
        ("fraud", "", "oip.http", {"X-Tenant": "acme"}, "fraud-acme"),
        ("resnet50", "2", "oip.grpc", {}, "images"),
        ("resnet50", "3", "oip.grpc", {}, "rest"),
        ("resnet50", "2", "oip.http", {}, "rest"),
        ("anything", "", "oip.http", {}, "rest"),
    ],
)
def test_the_routing_example_matches_its_comments(
    model: str, version: str, protocol: str, headers: dict[str, str], route: str
) -> None:
    """Calls match the routes that the comments describe."""
    config = load_file(FOLDER / "routing.yaml", environment={}).config
    found = explain_call(config, model=model, version=version, protocol=protocol, headers=headers)
    assert route == found.route


def test_the_graphpipe_example_matches_its_comments() -> None:
    """The addresses, models and options of the example are those of its comments."""
    config = load_file(FOLDER / "graphpipe.yaml", environment={}).config
    listener = config.listeners[1]
    settings = read_options(listener.options["graphpipe"])
    assert ("house_price", STATUS) == (listener.default_model, settings.errors)
    assert ["127.0.0.1:9001"] == [str(stream.address) for stream in listener.streams]
    urls = {name: str(upstream.url) for name, upstream in config.upstreams.items()}
    assert "graphpipe+http://127.0.0.1:9100/squeezenet" == urls["squeezenet"]
    assert "graphpipe+tcp://127.0.0.1:9200" == urls["scorer"]
    upstream = read_options(config.upstreams["squeezenet"].options)
    assert (("data",), ("probabilities",)) == (upstream.inputs, upstream.outputs)
    routes = {
        model: explain_call(
            config, model=model, version="", protocol="graphpipe.http", headers={}
        ).route
        for model in ("squeezenet", "scorer", "anything")
    }
    assert {"squeezenet": "squeezenet", "scorer": "scorer", "anything": "rest"} == routes
