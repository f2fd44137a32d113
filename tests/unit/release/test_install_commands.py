"""The commands of the README take the wheel with compiled code, where there is one for this platform."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags

from gateway import __version__

ROOT = Path(__file__).parents[3]
COMPILED = next(str(tag) for tag in sys_tags() if "manylinux" in tag.platform)
OTHER = re.sub("^cp3", "cp9", COMPILED)
PURE = "py3-none-any"
FORMS = {
    "pip": [sys.executable, "-m", "pip", "install", "--dry-run", "--target"],
    "uv": [str(Path(sys.executable).with_name("uv")), "pip", "install", "--verbose", "--target"],
}


def write_wheel(folder: Path, tag: str) -> None:
    name = f"tensor_gateway-{__version__}"
    info = f"{name}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: tensor-gateway\nVersion: {__version__}\n"
        wheel.writestr(f"{info}/METADATA", f"{metadata}Provides-Extra: onnx\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def commands() -> dict[str, str]:
    """Return the commands of the README, by the program that installs."""
    text = (ROOT / "README.md").read_text()
    return dict(re.findall(r"^\| (pip|pipx|uv) \| `(.*?)` \|", text, re.MULTILINE))


def test_each_command_finds_the_wheels_of_a_release() -> None:
    """None names a file, which would be one platform's, or the one without compiled code."""
    found = commands()
    assert {"pip", "pipx", "uv"} == found.keys()
    assert all("--find-links dist" in each for each in found.values())
    assert all("'tensor-gateway[onnx]'" in each for each in found.values())


@pytest.mark.parametrize("program", FORMS)
@pytest.mark.parametrize(
    ("tag", "expected"), [(COMPILED, COMPILED), (OTHER, PURE)], ids=["own", "other"]
)
def test_all_commands_installed_plain_python(
    tmp_path: Path, program: str, tag: str, expected: str
) -> None:
    """The wheel of this platform is chosen, and the one for all others where there is none."""
    for each in (tag, PURE):
        write_wheel(tmp_path, each)
    command = [*FORMS[program], str(tmp_path / "target"), "--no-index", "--find-links"]
    done = subprocess.run(
        [*command, str(tmp_path), "tensor-gateway[onnx]"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert f"tensor_gateway-{__version__}-{expected}" in done.stdout + done.stderr
    other = ({tag, PURE} - {expected}).pop()
    assert f"Processing ./tensor_gateway-{__version__}-{other}" not in done.stdout
