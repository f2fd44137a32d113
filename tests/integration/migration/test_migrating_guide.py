"""The guide docs/migrating.md: its client, its configuration and its commands, with their output."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.cli_kit import gateway, get, serving
from tests.unit.test_console_blocks import matches

GUIDE = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text("utf-8")
STEPS = GUIDE.partition("## From TensorRT v1 to Triton")[2].partition("## From GraphPipe")[0]
CODE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs between two runs: ids, times and durations, and the widths of their columns.
VARIES = re.compile(
    r"20\d\d\S+|[0-9a-f]{4}-[0-9a-f]+|\b\d+\.\d+ s\b|\b\d+ s ago|\b[0-9.]+(?= +0\.0% +)|"
    r"Python-urllib/\S+|(?<=0\.0%) +[0-9.]+| +"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def code(language: str, section: str = STEPS) -> list[str]:
    return [text for found, text in CODE.findall(section) if found == language]


def with_free_ports(text: str) -> str:
    """Return a configuration whose gateway listens on free ports."""
    return re.sub(r"127\.0\.0\.1:(8000|8001|9901)", "127.0.0.1:0", text)


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command that ends by itself, with its output."""
    for block in code("console"):
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            if not command.partition("#")[0].rstrip().endswith("&"):
                yield command, output


def guide_line(start: str) -> str:
    """Return the line of the guide that starts so."""
    return next(line for line in STEPS.splitlines() if line.startswith(start))


def same(text: str) -> str:
    """Return *text* without the parts that differ between two runs."""
    return VARIES.sub(" ", text)


def run(folder: Path, command: str, moved: Mapping[str, str]) -> str:
    """Run a command of the guide, with the addresses of this run, and return its output."""
    for old, new in moved.items():
        command = command.replace(old, new)
    program, *arguments = shlex.split(command)
    if program == "python":
        return subprocess.run(
            [sys.executable, *arguments], cwd=folder, check=True, capture_output=True, text=True
        ).stdout
    files = {"capture", "results", "gateway.yaml", "gateway.yaml#digits"}
    paths = [str(folder / each) if each in files else each for each in arguments[1:]]
    paths.insert(0, arguments[0])
    if paths[0] == "stock":
        paths.append(moved["admin"])
    elif paths[0] == "route" or (paths[0] == "capture" and paths[1] in _REMOTE):
        paths += ["--admin", moved["admin"]]
    done = gateway(*paths)
    return done.stdout or done.stderr


_REMOTE = {"start", "stop", "status"}


def test_commands_of_the_guide_print_its_output(tmp_path: Path) -> None:
    """The steps run in order, with other ports; `...` stands for anything."""
    (tmp_path / "old_client.py").write_text(code("python")[0])
    flags = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off")
    with serving("--demo", *flags, patience_s=45) as demo:
        moved = {
            "127.0.0.1:18000": demo.addresses["main.http"],
            "127.0.0.1:28001": demo.addresses["main.grpc"],
        }
        text = code("yaml")[0]
        for old, new in moved.items():
            text = text.replace(old, new)
        (tmp_path / "gateway.yaml").write_text(with_free_ports(text))
        with serving(str(tmp_path / "gateway.yaml"), patience_s=45) as front:
            moved["127.0.0.1:8000"] = front.addresses["main.http"]
            moved["admin"] = front.addresses["admin"]
            found = {
                command: (same(run(tmp_path, command, moved)), same(output))
                for command, output in steps()
                if not command.startswith(("gateway stock", "gateway capture status"))
            }
            rows = run(tmp_path, "gateway stock", moved).splitlines()
            counts = run(tmp_path, "gateway capture status", moved)
            assert front.stop() == 0
    assert {} == {
        command: (printed, shown)
        for command, (printed, shown) in found.items()
        if not matches(shown, printed)
    }
    assert re.split("  +", rows[0]) == re.split("  +", guide_line("client  "))
    assert guide_line("450 sampled") in counts


OTHERS = GUIDE.partition("## From TensorFlow Serving")[2]
ROWS = re.findall(r"^\| ([A-Z].+?) \| `(url: .+?)` \| `(/.+?)` `(.+?)` \|", OTHERS, re.MULTILINE)


@pytest.mark.parametrize(
    ("old", "path", "body"), [each[1:] for each in ROWS], ids=[each[0] for each in ROWS]
)
def test_each_old_server_is_recorded_replayed_and_left(
    tmp_path: Path, old: str, path: str, body: str
) -> None:
    """With the file of the guide; the client gets the same from the new server."""
    flags = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off")
    row = json.dumps([float(each % 17) for each in range(64)])
    request = json.loads(body.replace("ROW", row))
    with serving("--demo", *flags, patience_s=45) as demo:
        new = f"oip+grpc://{demo.addresses['main.grpc']}"
        (text,) = code("yaml", OTHERS)
        text = text.replace('url: "tfs+http://127.0.0.1:18000"', old)
        text = text.replace("127.0.0.1:18000", demo.addresses["main.http"])
        text = text.replace("127.0.0.1:28001", demo.addresses["main.grpc"])
        (tmp_path / "gateway.yaml").write_text(with_free_ports(text))
        with serving("gateway.yaml", patience_s=45, folder=tmp_path) as front:
            url = f"http://{front.addresses['main.http']}{path}"
            status, answer = get(url, request)
            assert 200 == status, answer
            weights = ("route", "weights", "digits", "old=0", "new=100")
            assert 0 == gateway(*weights, "--admin", front.addresses["admin"]).returncode
            status, again = get(url, request)
            assert (200, {**answer, "meta": 0}) == (status, {**again, "meta": 0})
            assert front.stop() == 0
        found = gateway("replay", "capture", "--against", new, folder=tmp_path).stdout
    assert re.search(r"^2 calls in .* 0 failed, 0 left out$", found, re.MULTILINE), found
    assert not re.search(r"^\w+ +\d+ +[1-9]", found, re.MULTILINE), found
