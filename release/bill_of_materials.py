"""Writes bills of materials in the CycloneDX format, of a lock or of an installed environment.

    python release/bill_of_materials.py lock requirements/slim.lock > sbom.cdx.json
    python release/bill_of_materials.py environment /opt/gateway/lib/python3.11/site-packages

The output depends on nothing but the input, so two builds of a commit have the same one.

Source: CycloneDX 1.6, https://cyclonedx.org/docs/1.6/json/; the specification of package URLs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final = "tensor-gateway"

_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]+\])?==([^\s;]+)(?:\s*;\s*([^\\]*))?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def version() -> str:
    """Return the version of the gateway in this checkout."""
    text = (ROOT / "gateway" / "__init__.py").read_text("utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


def of_lock(path: Path) -> dict[str, Any]:
    """Return the bill of materials of the gateway with the packages of a lock."""
    components: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines():
        pin = _PIN.match(line)
        if pin is not None:
            components.append(_component(pin[1], pin[2]))
            if pin[3]:
                marker = {"name": "python:marker", "value": pin[3].strip()}
                components[-1]["properties"] = [marker]
        elif found := _HASH.search(line):
            hashes = components[-1].setdefault("hashes", [])
            hashes.append({"alg": "SHA-256", "content": found[1]})
    return _document(version(), components)


def of_environment(site_packages: Path) -> dict[str, Any]:
    """Return the bill of materials of what is installed in a folder; the gateway is the subject."""
    found = {_name(each): each for each in distributions(path=[str(site_packages)])}
    gateway = found.pop(PROJECT, None)
    components = [_installed(name, found[name]) for name in sorted(found)]
    return _document(version() if gateway is None else gateway.version, components)


def pinned(path: Path) -> dict[str, str]:
    """Return the versions of a lock by name; of packages with several, the last one."""
    lines = path.read_text("utf-8").splitlines()
    return {pin[1]: pin[2] for pin in map(_PIN.match, lines) if pin is not None}


def _name(distribution: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()


def _installed(name: str, distribution: Distribution) -> dict[str, Any]:
    component = _component(name, distribution.version)
    if "License-Expression" in distribution.metadata:
        component["licenses"] = [{"expression": distribution.metadata["License-Expression"]}]
    return component


def _component(name: str, number: str) -> dict[str, Any]:
    reference = f"pkg:pypi/{name}@{number}"
    return {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": number,
        "purl": reference,
    }


def _document(number: str, components: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    subject = {**_component(PROJECT, number), "type": "application"}
    subject["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": list(components),
    }


def main(arguments: Sequence[str]) -> int:
    """Print the bill of materials that the arguments name."""
    readers = {"lock": of_lock, "environment": of_environment}
    if len(arguments) != 2 or arguments[0] not in readers:  # noqa: PLR2004  # what and where
        print("expected: lock FILE, or environment SITE_PACKAGES", file=sys.stderr)
        return 2
    print(json.dumps(readers[arguments[0]](Path(arguments[1])), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
