"""Parts of an installed package that the migration kit uses: a comparison rule and a sink of events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extension import test_package
from tests.extension.kit import Serving, serving
from tests.extension.test_package import check_keys, post, site
from tests.integration.workers_kit import eventually

pytestmark = pytest.mark.timeout(300)

__all__ = ["site"]  # a fixture

CONFIG = f"""{test_package.CONFIG}\
migrations:
  offline: {{compare: {{outputs: {{OUTPUT0: {{rule: same_sign}}}}}}}}
events:
  own: {{url: "lines://SITE/events.txt", payload: full}}
"""
WRONG = ("same_sign", "other", "migrations.offline.compare.outputs.OUTPUT0.rule", "same_sign")


@pytest.fixture(scope="module")
def running(site: Path) -> Iterator[Serving]:
    config = site / "gateway.yaml"
    config.write_text(CONFIG.replace("SITE", str(site)))
    with serving(site, config) as found:
        yield found


def test_a_rule_that_does_not_exist_is_named(site: Path, tmp_path: Path) -> None:
    """`gateway validate` names the key, and the rules of packages."""
    check_keys(site, tmp_path, CONFIG, [WRONG])


def test_its_sink_gets_events(running: Serving, site: Path) -> None:
    """A call is a line for its request and one for its reply, with JSON values."""
    post(running, "plain", "7")
    path = site / "events.txt"
    eventually(lambda: path.exists() and 2 <= len(path.read_text().splitlines()))
    (name, fields), *_ = [json.loads(line) for line in path.read_text().splitlines()]
    assert "org.kubeflow.serving.inference.request" == name
    assert "inputs" in fields["data"]
    assert "predictor" == fields["component"]
