"""Workflows and templates: actions are pinned, jobs are bounded, and targets of make exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_hash(path: Path) -> None:
    """A tag can be moved to other code, a hash cannot; jobs end, and may write nothing by default."""
    document = yaml.safe_load(path.read_text())
    assert {"contents": "read"} == document["permissions"]
    for name, job in jobs(path).items():
        assert job["timeout-minutes"] <= (12 if path.stem == "ci" else 120), name
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_targets_of_workflows_exist(path: Path) -> None:
    """What a job makes is a target of the Makefile."""
    missing = []
    for job in jobs(path).values():
        matrix = job.get("strategy", {}).get("matrix", {}).get("command", [])
        for command in (*matrix, *(step.get("run", "") for step in job["steps"])):
            for line in command.splitlines():
                words = shlex.split(line)
                if words[:1] != ["make"]:
                    continue
                names = [each for each in words[1:] if re.fullmatch(r"[a-z-]+", each)]
                missing += [name for name in names if name not in TARGETS]
    assert [] == missing


def test_a_change_is_checked_in_parallel_jobs() -> None:
    """No job of a change waits for another one."""
    found = jobs(ROOT / ".github" / "workflows" / "ci.yml")
    expected = {"lint", "unit", "integration", "interop", "build", "charts", "docs"}
    assert expected == found.keys()
    assert not any("needs" in job for job in found.values())


def test_a_release_publishes_all_of_its_files() -> None:
    """The files that docs/release.md lists leave the build, and the page of the release has them."""
    found = jobs(ROOT / ".github" / "workflows" / "release.yml")
    listed = re.findall(r"^\| `([^`]+)`", (ROOT / "docs" / "release.md").read_text(), re.MULTILINE)
    assert {"sbom.cdx.json", "provenance.json", "SHA256SUMS"} <= set(listed)
    (upload,) = (step["with"] for step in found["build"]["steps"] if "upload" in str(step))
    patterns = [Path(pattern).name for pattern in upload["path"].split()]
    assert [] == [
        name for name in listed if not any(Path(name).match(pattern) for pattern in patterns)
    ]
    commands = " ".join(
        step.get("run", "") for name in ("image", "publish") for step in found[name]["steps"]
    )
    for command in ("gh release create", "docker push", "helm push"):
        assert command in commands
    assert {"id-token": "write", "contents": "write"} == found["publish"]["permissions"]
    assert any("pypi-publish" in step.get("uses", "") for step in found["publish"]["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_install_only_what_a_lock_names(path: Path) -> None:
    """Each install checks the hashes of a lock that there is, and nothing is run from an index."""
    text = path.read_text()
    assert [] == re.findall(r"\b(?:pipx|uvx|uv tool|npx)\b.*", text)
    wrong = []
    for line in re.findall(r"\bpip install\b.*", text):
        lock = re.search(r"--require-hashes --no-deps --requirement \S*?([\w.-]+\.lock)", line)
        if lock is None or not (
            lock[1] == "build.lock" or (ROOT / "requirements" / lock[1]).exists()
        ):
            wrong.append(line)
    assert [] == wrong


def test_every_night_runs_the_long_suites() -> None:
    """Slow and hostile tests, faults, memory, PyTorch and the image."""
    (job,) = jobs(ROOT / ".github" / "workflows" / "nightly.yml").values()
    targets = {command.split()[1] for command in job["strategy"]["matrix"]["command"]}
    assert {"slow", "hostile", "chaos", "soak", "torch", "image-offline"} == targets


def test_every_owned_path_exists() -> None:
    """CODEOWNERS names paths that there are."""
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.startswith("/")]
    assert paths
    assert [] == [path for path in paths if not (ROOT / path.strip("/")).exists()]


def test_changes_have_a_kind() -> None:
    """Each file of `changes` has a number and a kind that towncrier knows."""
    names = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    pattern = re.compile(r"[0-9+][\w.-]*\.(added|changed|fixed|removed|security)(\.\d+)?\.md")
    assert [] == [name for name in names if not pattern.fullmatch(name)]


def test_make_run_shows_its_progress() -> None:
    """The first run installs for minutes: it says so, and pip says what it does meanwhile."""
    command = ["make", "--dry-run", "--always-make", "run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "once, one to three minutes ..." in done.stdout
    installs = [line for line in done.stdout.splitlines() if "pip " in line and "install" in line]
    assert installs
    assert [] == [line for line in installs if re.search(r" (-q|--quiet|>)", line)]
