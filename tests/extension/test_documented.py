"""The policy that docs/extending.md teaches does what the page says, and passes a strict type check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api as mypy

from gateway.config.load import load_text
from tests.extension.kit import install
from tests.extension.readers import discovered
from tests.extension.test_readers import FORMS, LISTENER, MODEL, before, send

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """Write the policy and the page of the admin port as a package."""
    path = tmp_path / "gateway_limits"
    path.mkdir()
    text = PAGE.read_text("utf-8")
    for name, begin in (("__init__.py", "import math"), ("page.py", "from gateway import api\n\n")):
        found = re.search(f"```python\n({begin}.*?)```", text, re.DOTALL)
        assert found is not None
        (path / name).write_text(found[1])
    install(
        tmp_path, "gateway-limits", {"gateway.layers": {"max_elements": "gateway_limits:LAYER"}}
    )
    return path


def test_the_protocol_of_the_page_is_that_of_the_package() -> None:
    """Whose tests show that it works."""
    code = (Path(__file__).parent / "gateway_toy" / "protocol.py").read_text("utf-8")
    assert code.split('"""\n\n', 1)[1] in PAGE.read_text("utf-8")


def test_the_policy_and_the_page_are_typed(module: Path) -> None:
    """`mypy --strict` accepts them as they stand."""
    text, errors, status = mypy.run(["--strict", str(module)])
    assert (0, "") == (status, errors), text


async def test_the_policy_could_be_walked_around_by_rows(module: Path) -> None:
    """It refuses 7 elements over each form, and accepts 6."""
    few, many = [[1.0] * 6], [[1.0] * 7]
    with discovered(module.parent):
        async with before({}, f"{LISTENER}policies: {{max_elements: 6}}\n{MODEL}") as front:
            for form in FORMS:
                assert 200 == (await send(front, form, few))[0], form.name
                assert 413 == (await send(front, form, many))[0], form.name


def test_an_unknown_chain_or_place_is_refused(tmp_path: Path) -> None:
    """The text names the package, what is wrong and what is expected."""
    (tmp_path / "gateway_lost.py").write_text(
        "from gateway.api import Layer, Setting\n"
        'CHAIN = Layer("Lost", "is lost", "rout", lambda inner, at: None)\n'
        'KEY = Setting(key="lost", type=int, default=0, help="Default: 0.", places=("routes",))\n'
        'PLACE = Layer("Lost", "is lost", "route", lambda inner, at: None, settings=(KEY,))\n'
        'NEEDS = Layer("Lost", "is lost", "route", lambda inner, at: None, needs="shapes")\n'
    )
    names = ("CHAIN", "PLACE", "NEEDS")
    entries = {name.lower(): f"gateway_lost:{name}" for name in names}
    install(tmp_path, "gateway-lost", {"gateway.layers": entries})
    with discovered(tmp_path), pytest.raises(Exception, match="rout") as found:
        load_text(f"{LISTENER}{MODEL}")
    text = str(found.value)
    assert "package 'gateway-lost': layer 'chain' has the chain 'rout'; expected one of" in text
    assert "layer 'place' has the key 'lost' in the place 'routes'; expected one of top" in text
    assert "layer 'needs' has the needs 'shapes'; expected one of Reads.NOTHING" in text
