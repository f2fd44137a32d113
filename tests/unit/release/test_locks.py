"""The locks: exact versions with hashes that satisfy `pyproject.toml`, and no address of a registry."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.release.loading import load

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, tuple[str, ...]] = {
    "slim": (),
    "onnx": ("onnx",),
    "torch": ("torch",),
    "torch-cpu": ("torch",),
    "kubernetes": ("kubernetes",),
    "dev": ("dev", "onnx"),
}
# What `make lock` writes from a requirement in the Makefile.
TOOLS = {"charts": "HELM", "wheels": "CIBUILDWHEEL"}
materials = load("bill_of_materials")


def required(name: str) -> list[Requirement]:
    project = PROJECT["project"]
    texts = list(project["dependencies"])
    for extra in EXTRAS[name]:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def entries(name: str) -> list[str]:
    """Return what a lock has about each package."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return [each for each in re.split(r"\n(?=\S)", text) if each.strip()]


@pytest.mark.parametrize("name", EXTRAS)
def test_locks_satisfy_the_project(name: str) -> None:
    """Each direct dependency is there, in a version that it allows: `make lock` was not forgotten."""
    pinned = materials.pinned(ROOT / "requirements" / f"{name}.lock")
    wrong = []
    for each in required(name):
        version = pinned.get(re.sub(r"[-_.]+", "-", each.name).lower())
        if version is None or not each.specifier.contains(version):
            wrong.append(f"{each}: {version}")
    assert [] == wrong


@pytest.mark.parametrize("name", EXTRAS)
def test_every_pin_has_a_hash(name: str) -> None:
    """A package without a hash could be another one tomorrow; an address would bind the lock."""
    found = entries(name)
    assert len(found) > 20
    check_pins(found)


def check_pins(found: list[str]) -> None:
    for entry in found:
        assert re.match(r"[a-z0-9-]+(\[[a-z0-9, -]+\])?==[^\s;]+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
        assert "://" not in entry


@pytest.mark.parametrize("name", TOOLS)
def test_locks_of_tools_are_made_by_make(name: str) -> None:
    """They have what the Makefile asks for, with hashes, and `make lock` writes all locks."""
    text = (ROOT / "Makefile").read_text()
    (line,) = re.findall(rf"^{TOOLS[name]} := (.*)$", text, re.MULTILINE)
    wanted = Requirement(line)
    assert wanted.specifier.contains(
        materials.pinned(ROOT / "requirements" / f"{name}.lock")[wanted.name]
    )
    check_pins(entries(name))
    locks = {path.name for path in (ROOT / "requirements").glob("*.lock")}
    assert locks == {f"{each}.lock" for each in (*EXTRAS, *TOOLS)}
    assert [] == [each for each in locks if f"--output-file requirements/{each}" not in text]


def test_the_builds_tools_are_locked_in_the_version_that_builds() -> None:
    """`make dist` builds with the installed tools, and others with those of `build-system`."""
    pinned = materials.pinned(ROOT / "requirements" / "dev.lock")
    tools = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    assert {(each.name, f"=={pinned[each.name]}") for each in tools} == {
        (each.name, str(each.specifier)) for each in tools
    }


def test_what_builds_a_release_is_complete() -> None:
    """`make dist` installs these packages of the lock alone, and they need no others."""
    (line,) = re.findall(r"^BUILDERS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    builders = set(line.split("|"))
    assert builders <= materials.pinned(ROOT / "requirements" / "dev.lock").keys()
    texts = (text for name in builders for text in requires(name) or ())
    needed = (each for each in map(Requirement, texts) if not each.marker or each.marker.evaluate())
    assert set() == {canonicalize_name(each.name) for each in needed} - builders


def test_the_bill_of_materials_has_every_package_of_a_lock() -> None:
    """Each package has its version, its address in the form of package URLs, and its hashes."""
    path = ROOT / "requirements" / "slim.lock"
    document = materials.of_lock(path)
    components = document["components"]
    assert len(components) == len(entries("slim"))
    assert materials.pinned(path).keys() == {each["name"] for each in components}
    assert len(components) == len({each["bom-ref"] for each in components})
    assert all(each["hashes"] for each in components)
    numpy = [each for each in components if each["name"] == "numpy"]
    assert all(each["purl"] == f"pkg:pypi/numpy@{each['version']}" for each in numpy)
    assert materials.version() == document["metadata"]["component"]["version"]


def test_the_bill_of_materials_of_an_environment_is_the_installed_set(tmp_path: Path) -> None:
    """Packages have their names as registries have them; the gateway itself is the subject."""
    for name, version in (("Jinja2", "3.1"), ("a_b.c", "1"), ("tensor_gateway", "9.9")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    document = materials.of_environment(tmp_path)
    assert "9.9" == document["metadata"]["component"]["version"]
    assert [("a-b-c", "1"), ("jinja2", "3.1")] == [
        (each["name"], each["version"]) for each in document["components"]
    ]


def test_pins_have_the_extras_of_requirements() -> None:
    """An old pip takes the newest release for `coverage[toml]` where the pin is `coverage`."""
    assert "coverage[toml]==" in (ROOT / "requirements" / "dev.lock").read_text()
