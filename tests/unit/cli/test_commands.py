"""The command line as a whole: version, help, and wrong usage."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from gateway import __version__
from gateway.accelerator import BUILD
from gateway.cli import commands
from gateway.cli.commands import SUMMARIES, all_commands, command_line, overview, run


def test_help_lists_every_command() -> None:
    """`gateway --help` has the summary of each command that is not hidden."""
    group = typer.main.get_group(command_line())
    shown = {name: each for name, each in group.commands.items() if not each.hidden}
    expected = {name: each.get_short_help_str(1_000) for name, each in shown.items()}
    listed = typer.main.get_group(overview()).commands
    found = {name: each.get_short_help_str(1_000) for name, each in listed.items()}
    assert expected.items() <= found.items()
    assert dict(SUMMARIES) == found


@pytest.mark.migration
def test_help_lists_no_other_command() -> None:
    """The summaries of commands of the migration kit stand in the table, too."""
    group = typer.main.get_group(command_line())
    hidden = {name for name, each in group.commands.items() if each.hidden}
    assert {"migration-demo"} == hidden
    assert SUMMARIES.keys() == group.commands.keys() - hidden


def test_help_imports_no_command() -> None:
    """The list and the help of `serve` cost what typer costs, and so does an unknown flag."""
    script = (
        "import sys\n"
        "from gateway.cli.commands import run\n"
        "assert 0 == run(['--help'])\n"
        "assert 2 == run(['--nonsense'])\n"
        "assert 0 == run(['serve', '--help'])\n"
        "heavy = ('asyncio', 'numpy', 'gateway.app', 'gateway.registry')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "[]" == done.stdout.splitlines()[-1]
    assert "\n  residency " in done.stdout


def test_the_list_has_the_commands_of_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their help is read from them."""
    monkeypatch.setattr(commands, "entry_points", lambda **_group: ("a package",))
    named = {**all_commands(), "more": "gateway.cli.schema:schema"}
    monkeypatch.setattr(commands, "all_commands", lambda: named)
    listed = typer.main.get_group(overview()).commands
    assert listed.keys() - SUMMARIES.keys() == {"more"}
    assert listed["more"].get_short_help_str(30).startswith("Print the JSON Schema")


def test_options_may_end_before_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`gateway -- schema` is `gateway schema`."""
    assert 0 == run(["--", "schema"])
    assert capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize("verb", all_commands())
def test_each_command_has_help(verb: str) -> None:
    """`gateway COMMAND --help` describes the command."""
    result = CliRunner().invoke(command_line([verb]), [verb, "--help"])
    assert result.exit_code == 0
    assert f"gateway {verb}" in result.stdout or "Usage:" in result.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["schema", "--nonsense"]])
def test_wrong_usage_exits_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown command or flag is reported on standard error, without a traceback."""
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "No such" in err
    assert "Traceback" not in err


def test_a_successful_command_exits_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line returns the status of the command."""
    assert run(["schema"]) == 0
    assert capsys.readouterr().out.startswith("{")


def test_an_interrupt_during_imports_leaves_no_traceback() -> None:
    """The command ends by the signal, as a shell expects it."""
    script = (
        "import signal, gateway.cli as cli\n"
        "cli._run = lambda: signal.raise_signal(signal.SIGINT)\n"
        "cli.main()"
    )
    # A shell lets its background jobs, which tests may be, ignore SIGINT.
    command = ["env", "--default-signal=INT", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (-signal.SIGINT, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_version_is_printed_without_heavy_imports() -> None:
    """`gateway --version` imports neither typer nor the gateway itself."""
    script = (
        "import sys; sys.argv = ['gateway', '--version']\n"
        "from gateway.cli import main; main()\n"
        "assert 'typer' not in sys.modules and 'gateway.app' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (f"gateway {__version__} ({BUILD})\n", "") == (done.stdout, done.stderr)


def test_version_is_accepted_with_other_arguments() -> None:
    """The same text is printed."""
    result = CliRunner().invoke(command_line(["schema"]), ["--version", "schema"])
    assert (0, f"gateway {__version__} ({BUILD})\n") == (result.exit_code, result.stdout)


def test_serve_imports_only_the_configured_transports() -> None:
    """A gateway of native transports starts without aiohttp and grpcio."""
    text = (
        "{version: 1, listeners: [{http: '127.0.0.1:0', grpc: '127.0.0.1:0'}], "
        "admin: {address: '127.0.0.1:0'}, "
        "upstreams: {a: {url: 'oip+grpc://127.0.0.1:9'}, b: {url: 'oip+http://127.0.0.1:9'}}, "
        "routes: [{targets: [{upstream: a}, {upstream: b}]}]}"
    )
    script = (
        "import sys\n"
        "import gateway.cli.serving.serve\n"
        "from gateway.app import Gateway\n"
        "from gateway.config.load import load_text\n"
        f"Gateway(load_text({text!r}))\n"
        "print(sys.modules.keys() & {'aiohttp', 'grpc', 'gateway.transports.reference'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "set()\n" == done.stdout
