"""What whoever publishes must fill in stands in one place, and no host is invented elsewhere."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.project_copy import ROOT, is_source
from tests.unit.release.loading import load

publisher = load("publisher")
# They repeat the values, or are about them.
ABOUT = {*publisher.files(publisher.values()), "release/publisher.toml", "release/publisher.py"}
ABOUT |= {"docs/release.md", "tests/unit/release/test_publisher.py"}
HOSTS = re.compile(
    r"\b(?:github\.(?:com|io)|gitlab\.com|readthedocs\.\w+|docker\.(?:io|com)"
    r"|(?:ghcr|gcr|nvcr|quay|azurecr|artifacthub)\.io|pkg\.dev)\b"
)
IMAGE = re.compile(r"^\s*(?:- )?(?:image|repository): *[\"']?([^\s\"'#]+)", re.MULTILINE)
# The repository is released as an archive, too, which has no list of its files.
METADATA = "PKG-INFO"  # it repeats the addresses of the project


def tracked() -> list[str]:
    """Return the paths of the project's files."""
    command = ["git", "-C", str(ROOT), "ls-files"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    found = (str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())
    return [name for name in found if is_source(name) and not name.endswith(METADATA)]


def text_of(name: str) -> str:
    return (ROOT / name).read_bytes().decode("utf-8", errors="replace")


def test_files_repeat_the_values() -> None:
    """`make regenerate` was not forgotten."""
    found = publisher.files(publisher.values())
    assert {} == {name: text for name, text in found.items() if text_of(name) != text}


def test_one_place_has_the_owner_and_the_hosts() -> None:
    """No other file names a host of repositories, pages or images, or the placeholder."""
    wrong = {
        name: found
        for name in tracked()
        if name not in ABOUT
        and not name.startswith("tests/golden/")  # recorded from real servers
        and (
            found := sorted(
                {*HOSTS.findall(text_of(name)), *re.findall(r"@OWNER\b|\bOWNER/", text_of(name))}
            )
        )
    }
    assert {} == wrong


def test_a_host_is_found() -> None:
    """Names of registries count, and words that resemble them do not."""
    assert HOSTS.search("FROM ghcr.io/x/y")
    assert HOSTS.search("https://europe-docker.pkg.dev/x")
    assert not HOSTS.search("sidecar.istio.io and docker.internal")


def test_images_have_no_registry() -> None:
    """Whoever deploys says where images are."""
    files = [
        name
        for name in tracked()
        if name.startswith("deploy/") and name.endswith((".yaml", ".tpl"))
    ]
    images = {image for name in files for image in IMAGE.findall(text_of(name))}
    assert any(image.startswith("tensor-gateway") for image in images)
    assert [] == [image for image in images if "." in image.partition("/")[0].partition(":")[0]]


def test_a_placeholder_stops_a_release(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release names each value that nobody has filled in."""
    keys = ("repository", "images")
    monkeypatch.setattr(
        publisher, "values", lambda: {"repository": "https://h/OWNER/x", "images": ""}
    )
    assert 1 == publisher.main(["--filled"])
    assert list(keys) == [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    monkeypatch.setattr(publisher, "values", lambda: dict.fromkeys(keys, "h/me"))
    assert 0 == publisher.main(["--filled"])
    assert 0 == publisher.main(["images"])
    assert "h/me\n" == capsys.readouterr().out


def test_the_workflow_of_a_release_needs_the_values() -> None:
    """The workflow stops at a placeholder, and pushes images to the place that the file names."""
    workflow = text_of(".github/workflows/release.yml")
    assert "release/publisher.py --filled" in workflow
    assert "release/publisher.py images" in workflow
