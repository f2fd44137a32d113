"""Keys of the configuration that an older release does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway import __version__
from gateway.cli.commands import command_line
from gateway.cli.configuration import ADDED, later_keys

RELEASES = {"1.0": (), "1.1": ("upstreams.*.residency",), "1.2": ("listeners.*.identity", "events")}
DOCUMENT = {
    "listeners": [{"http": "127.0.0.1:0"}, {"identity": {}}],
    "upstreams": {"a": {"residency": {"models": 4}}},
    "events": {},
}


def test_keys_of_later_releases_are_found() -> None:
    """A star stands for one name or index; keys below a found one are not repeated."""
    residency = (("upstreams", "a", "residency"), "1.1")
    rest = [(("listeners", 1, "identity"), "1.2"), (("events",), "1.2")]
    assert [residency, *rest] == list(later_keys(DOCUMENT, "1.0", RELEASES))
    assert rest == list(later_keys(DOCUMENT, "1.1", RELEASES))
    assert [] == list(later_keys(DOCUMENT, "1.2", RELEASES))


def test_an_unknown_release_is_wrong_usage(tmp_path: Path) -> None:
    """The error names the releases that there are, also where the file has errors."""
    path = tmp_path / "gateway.yaml"
    path.write_text("version: 1\nlisteners: [{http: '127.0.0.1:0'}]\nupstreams: 7\n")
    with pytest.raises(ValueError, match=r"version is '9'; expected one of 1\.0, 1\.1"):
        list(later_keys(DOCUMENT, "9", RELEASES))
    result = CliRunner().invoke(command_line(["validate"]), ["validate", "--for", "9", str(path)])
    assert (2, True) == (result.exit_code, f"expected one of {__version__}" in result.output)


def test_this_release_is_the_last_one() -> None:
    """Whoever raises the version adds its keys."""
    assert __version__ == list(ADDED)[-1]
