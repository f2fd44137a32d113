"""Console blocks of README and docs: each page is run in order, in a folder of its own.

`...` matches anything, and so do the numbers of a block below `<!-- any numbers -->`. A block below `<!-- not run: REASON -->` is only parsed, by
`tests/unit/test_console_blocks.py`. `docs/migrating.md` has a test of its own.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.integration import fork_server
from tests.integration.cli_kit import free_port, gateway, serving
from tests.integration.workers_kit import eventually
from tests.interop.programs import program as installed
from tests.unit.test_console_blocks import PAGES, ROOT, matches, name_of

GUIDE = ROOT / "docs" / "migrating.md"
BLOCK = re.compile(
    r"^(?P<mark><!-- not run: [^\n]+ -->\n+)?(?P<numbers><!-- any numbers -->\n+)?```(?P<language>console|yaml)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# (\S+\.yaml)\n")
ADDRESS = re.compile(r"(?:127\.0\.0\.1|10\.0\.0\.5):\d{4,5}")
ADMIN = "127.0.0.1:9901"
ASKS_ADMIN = frozenset({"stock", "status", "top", "reload"})
# What a `serve` without a file listens on.
LISTENERS = {"--http": "127.0.0.1:8000", "--grpc": "127.0.0.1:8001", "--admin": ADMIN}

pytestmark = [pytest.mark.slow, pytest.mark.migration, pytest.mark.timeout(300)]


def run_commands(page: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield each command of *page* that is run, the output below it, and whether numbers differ."""
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["language"] == "console" and not block["mark"]:
            for part in re.split(r"^\$ ", block["code"].replace("\\\n", " "), flags=re.MULTILINE)[
                1:
            ]:
                line, _, output = part.partition("\n")
                yield line, output, bool(block["numbers"])


RUN = [page for page in PAGES if page != GUIDE and any(run_commands(page))]


@dataclass
class Terminal:
    """The folder of a page, and the gateway that its last `serve` runs.

    Attributes:
        folder: Where its files are.
        ports: Free ports of this machine, by addresses on the page.
    """

    folder: Path
    ports: dict[str, str] = field(default_factory=lambda: defaultdict(lambda: str(free_port())))
    served: ExitStack = field(default_factory=ExitStack)

    def moved(self, text: str) -> str:
        """Return *text* with the addresses of this machine."""
        return ADDRESS.sub(lambda found: f"127.0.0.1:{self.ports[found[0]]}", text)

    def shown(self, text: str) -> str:
        """Return *text* with the addresses of the page."""
        for old, new in self.ports.items():
            text = text.replace(f"127.0.0.1:{new}", old)
        return text

    def write(self, name: str, text: str) -> None:
        """Write a file of the page."""
        (self.folder / name).write_text(self.moved(text), encoding="utf-8")

    def run(self, line: str) -> str:
        """Run a command of the page and return what it prints."""
        program, *words = shlex.split(self.moved(line), comments=True)
        if program in {"pip", "export"}:  # it is installed, and found
            return ""
        if (program, *words) == ("make", "run"):  # it installs, and then this
            return self.shown(self._demo())
        if program == "curl":
            command = [installed("curl"), "--silent", "--max-time", "60", *words]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert program == "gateway", f"mark the block of: {line}"
        if words[0] == "serve":
            self._serve(words[1:])
            return ""
        if words[0] in ASKS_ADMIN or "--live" in words:
            words.append(self.moved(ADMIN))
        done = gateway(*words, folder=self.folder)
        if words[0] == "health":  # ready as soon as the gateway has asked its server
            eventually(lambda: gateway(*words, folder=self.folder).returncode == 0)
            return ""
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return self.shown(done.stdout)

    def _demo(self) -> str:
        """Return what the demo prints until it only serves."""
        flags = [word for flag, where in LISTENERS.items() for word in (flag, self.moved(where))]
        with TemporaryFile("w+") as printed:
            process = fork_server.start(
                ["demo", *flags], printed.fileno(), printed.fileno(), self.folder
            )

            def text() -> str:
                assert process.poll() is None
                printed.seek(0)
                return printed.read()

            eventually(lambda: "Ctrl-C stops." in text())
            found = text()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        return found

    def _serve(self, words: list[str]) -> None:
        self.served.close()
        for flag, address in LISTENERS.items():
            if "--upstream" in words and flag not in words:
                words += [flag, self.moved(address)]
        self.served.enter_context(serving(*words, folder=self.folder))


@pytest.fixture(scope="module")
def stand_in_ports() -> Iterator[dict[str, str]]:
    """Run the server before which pages put the gateway: HTTP on port 9000, gRPC on 9001."""
    flags = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off")
    with serving("--demo", *flags) as running:
        addresses = running.addresses
        yield {
            "127.0.0.1:9000": addresses["main.http"].rpartition(":")[2],
            "127.0.0.1:9001": addresses["main.grpc"].rpartition(":")[2],
        }


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_commands_print_what_the_page_shows(
    page: Path, tmp_path: Path, stand_in_ports: dict[str, str]
) -> None:
    """Each command of a page ends with status 0 and prints the output below it."""
    terminal = Terminal(tmp_path)
    terminal.ports.update(stand_in_ports)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for file in (tmp_path / "config").glob("*.yaml"):
        terminal.write(f"config/{file.name}", file.read_text("utf-8"))
    if "-o gateway.yaml" not in page.read_text("utf-8"):
        terminal.write("gateway.yaml", (ROOT / "config" / "routing.yaml").read_text("utf-8"))
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["language"] == "yaml" and (named := FILE.match(block["code"])):
            terminal.write(named[1], block["code"])
    with terminal.served:
        found = {}
        for line, output, any_number in run_commands(page):
            printed = terminal.run(line)
            if output and not matches(output, printed, any_number=any_number):
                found[line] = printed
    assert {} == found
