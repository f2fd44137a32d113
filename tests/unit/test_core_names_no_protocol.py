"""The core names no protocol: it learns all about one from its `ProtocolSpec`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.registry import PROTOCOLS

PACKAGE = Path(__file__).parents[2] / "gateway"
WINGS = frozenset({"protocols", "schema", "migration", "conformance", "cli"})
NAME = re.compile(rf"(?<![a-z])({'|'.join(PROTOCOLS)})(?![a-z])", re.IGNORECASE)

# A place that may name a protocol, and why.
ALLOWED = {
    "events/sinks/form.py": "the JSON of Open Inference, in which events have their tensors",
    "registry.py": "the table of protocols, one line for each",
    "settings/units.py": "the protocol of URLs without one, such as http://host",
    "settings/fields.py": "the example of a URL in the schema",
    "transports/net/wrong_port.py": "the URL to use, in an error text",
}
ALL = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
CORE = {name: path for name, path in ALL.items() if Path(name).parts[0] not in WINGS}
PROTOCOL_PARTS = {"protocols", "wire"}


def named_protocols(source: str) -> Iterator[str]:
    """Yield each text and each import that names a protocol, docstrings aside."""
    if NAME.search(source) is None:  # most modules: to parse one takes a while
        return
    tree = ast.parse(source)
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in described and NAME.search(node.value):
                yield f"line {node.lineno}: {node.value!r}"
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [each.name for each in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{each}" for each in names]
            for name in names:
                if f"{name}.".startswith("gateway.protocols."):
                    yield f"line {node.lineno}: import of {name}"


def test_no_file_of_the_core_names_a_protocol() -> None:
    """A protocol describes itself in its `SPEC`; `registry.py` has the only table."""
    names = sorted(CORE.keys() - ALLOWED.keys())
    assert names
    found = {name: list(named_protocols(CORE[name].read_text("utf-8"))) for name in names}
    assert {} == {name: places for name, places in found.items() if places}


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_an_allowed_place_still_names_a_protocol(name: str) -> None:
    """A place that needs no permission any more loses it."""
    assert [] != list(named_protocols(CORE[name].read_text("utf-8")))


@pytest.mark.parametrize(
    "source",
    [
        'if url.protocol == "oip": pass',
        'names = {"trtis"}',
        'codec = "grps.http"',
        'text = f"{x} of GraphPipe"',
        "from gateway.protocols.oip.dialects import KSERVE",
        "from gateway.protocols import oip",
        "import gateway.protocols.trtis",
    ],
)
def test_names_and_imports_of_protocols_are_found(source: str) -> None:
    """The scan sees comparisons, tables, names of codecs, messages and imports."""
    assert 1 == len(list(named_protocols(source)))


@pytest.mark.parametrize(
    "source",
    ['"""Reads oip."""', 'x: str\n"""The protocol, such as oip."""', 'x = "clipping"', "import re"],
)
def test_descriptions_of_protocols_are_allowed(source: str) -> None:
    """Docstrings of modules and of keys may have examples."""
    assert [] == list(named_protocols(source))


PLATFORMS = re.compile(r"vertex|sagemaker|\bAIP_|/opt/ml", re.IGNORECASE)
"""Names, variables and folders of platforms. `gateway/wire` has what two protocols read of one."""


@pytest.mark.parametrize(
    "name", sorted({path.parts[0] for path in map(Path, ALL)} - PROTOCOL_PARTS)
)
def test_only_folders_of_protocols_name_a_platform(name: str) -> None:
    """A platform is described by the `Platform` of a protocol, also in comments and help texts."""
    found = {
        f"{file}: {match[0]}"
        for file, path in ALL.items()
        if Path(file).parts[0] == name
        for match in PLATFORMS.finditer(path.read_text("utf-8"))
    }
    assert set() == found


def test_the_scan_finds_platforms() -> None:
    """The folders of two protocols name them."""
    text = "".join(
        path.read_text("utf-8") for file, path in ALL.items() if file.startswith("proto")
    )
    assert {"vertex", "sagemaker", "aip_", "/opt/ml"} <= {
        match[0].lower() for match in PLATFORMS.finditer(text)
    }
