"""Builds the site of the documentation; `make docs`.

It copies the pages of the repository to build/docs, turns links to files that are no pages into
links to the repository, writes the generated reference pages, and runs mkdocs, strict.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import publisher
import typer.main
import yaml

ROOT: Final = Path(__file__).parents[1]
STAGED: Final = ROOT / "build" / "docs"
REPOSITORY: Final = publisher.values()["repository"]
# Pages that are elsewhere in the site, and where.
OTHERS: Final[Mapping[str, str]] = {
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "benchmarks/RESULTS.md": "benchmarks/RESULTS.md",
    "docs/README.md": "pages.md",
    # Generated from the code: `make generated` compares them.
    "docs/admin-api.md": "reference/admin-api.md",
    "docs/api.md": "reference/api.md",
    "docs/metrics.md": "reference/metrics.md",
}
_PROGRESS = re.compile(r"^INFO .*\n", re.MULTILINE)
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]*)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Build the site."""
    sys.path.insert(0, str(ROOT))
    shutil.rmtree(STAGED, ignore_errors=True)
    places = staged_pages()
    for source, place in places.items():
        target = STAGED / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(with_site_links(source, places), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    for name, text in generated_pages().items():
        target = STAGED / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    built = ROOT / "build" / "mkdocs.yml"
    text = settings.replace("docs_dir: build/docs", f"docs_dir: {STAGED}")
    text = text.replace("site_dir: site", f"site_dir: {ROOT / 'site'}")
    text = text.replace("REPOSITORY", REPOSITORY)
    text = text.replace("CONFIGURATION", _entries("reference/configuration"))
    text = text.replace("PROTOCOLS", _entries("protocols"))
    built.write_text(text.replace("VERSION", _version()), encoding="utf-8")
    return build(built)


def build(settings: Path) -> int:
    """Run mkdocs, and show what it says but progress: with `--quiet` nothing would be strict."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(_PROGRESS.sub("", done.stderr))
    return done.returncode


def staged_pages() -> dict[Path, str]:
    """Return the files that the site has, and where."""
    found = {
        path: str(path.relative_to(ROOT / "docs"))
        for path in sorted((ROOT / "docs").rglob("*"))
        if path.is_file()
    }
    found |= {ROOT / path: place for path, place in OTHERS.items()}
    found |= {path: f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.svg")}
    return found


def with_site_links(source: Path, places: Mapping[Path, str]) -> str:
    """Return a page whose links lead to pages of the site, or to the repository."""
    own = Path(places[source]).parent

    def relinked(found: re.Match[str]) -> str:
        start, file, end = found.groups()
        if not file or "://" in file or file.startswith("mailto:"):
            return found[0]
        target = (source.parent / file).resolve()
        if target in places:
            steps = [".."] * len(own.parts)
            return f"{start}{'/'.join([*steps, places[target]])}{end}"
        if not target.exists():
            raise FileNotFoundError(f"{source}: the link {file} leads nowhere")
        return f"{start}{REPOSITORY}/blob/main/{target.relative_to(ROOT)}{end}"

    text = source.read_text("utf-8")
    parts = _CODE.split(text)
    blocks = [*_CODE.findall(text), ""]
    return "".join(
        _LINK.sub(relinked, part) + block for part, block in zip(parts, blocks, strict=True)
    )


def generated_pages() -> dict[str, str]:
    """Return the pages that are made from the code, by name."""
    import log_events  # noqa: PLC0415  # it imports the gateway

    return {
        "index.md": _home(),
        "reference/cli.md": cli_page(),
        "reference/log-events.md": log_events.events_page(),
        "reference/errors.md": errors_page(),
        **configuration_pages(),
    }


def _version() -> str:
    from gateway import __version__  # noqa: PLC0415  # found after `main` has set the path

    return __version__


def _home() -> str:
    text = with_site_links(ROOT / "README.md", staged_pages())
    return f"{text}\n\n*This site describes version {_version()}.*\n"


def cli_page() -> str:
    """Return the page of the command line, from its help."""
    from gateway.cli.commands import command_line  # noqa: PLC0415  # slow to import

    group = typer.main.get_command(command_line())
    lines = ["# Command line", "", "Made from `gateway COMMAND --help`.", ""]
    for name, command in _commands(group, "gateway"):
        context = click.Context(command, info_name=name, terminal_width=100)
        lines += [f"## {name}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(lines)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if getattr(command, "hidden", False):
        return
    yield name, command
    for each, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {each}")


# What usually leads to an error, and what helps.
CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "invalid_argument": (
        "The request is malformed, or not what the model wants.",
        "Correct the request; the text says what was found and what is expected.",
    ),
    "not_found": (
        "No route, model or version has this name.",
        "`gateway explain CONFIG.yaml --model NAME` shows the routes.",
    ),
    "not_ready": (
        "The model or the server is loading, or the gateway stops.",
        "Try again; `gateway status` has the reason.",
    ),
    "unsupported": (
        "The other side cannot represent it.",
        "Use what the text names, or another protocol.",
    ),
    "too_large": (
        "The message is above a limit.",
        "Raise the limit that the text names, if the memory suffices.",
    ),
    "unauthenticated": ("Credentials are missing or wrong.", "Send those of the listener."),
    "forbidden": ("The client may not do this.", "Ask the operator for the permission."),
    "quota_exceeded": (
        "The client has used up a quota.",
        "Wait as `Retry-After` says, or raise the limit of the quota; `gateway explain` shows it.",
    ),
    "overloaded": (
        "A limit of calls in flight, of rate or of memory is reached.",
        "Slow down; scale out, or raise the limit that the text names.",
    ),
    "unavailable": (
        "The model server cannot be reached.",
        "`gateway health URL` from the same machine; see the log line `endpoint not ready`.",
    ),
    "deadline_exceeded": (
        "The server or a queue was slower than the deadline.",
        "Look at the latencies of `gateway top`; raise the timeout of the route.",
    ),
    "cancelled": (
        "The client has gone.",
        "Nothing to do; clients may have a timeout that is too short.",
    ),
    "bad_upstream": (
        "The server's response breaks its protocol.",
        "Look at the server's version and the `dialect` of the upstream.",
    ),
    "upstream": ("The model server refused or failed the call.", "The text is that of the server."),
    "internal": ("A fault of the gateway.", "Report it with the log line `internal error`."),
}


def errors_page() -> str:
    """Return the page of the errors: code, statuses by protocol, cause and cure."""
    from gateway.ir.errors import ErrorCode  # noqa: PLC0415

    columns = _status_columns()
    lines = [
        "# Errors",
        "",
        "The code of an error is in the log and in metrics.",
        "Protocols without a column use the statuses of HTTP and gRPC.",
        "",
        f"| code | {' | '.join(columns)} | cause | cure |",
        f"| --- |{' --- |' * (len(columns) + 2)}",
    ]
    for code in ErrorCode:
        statuses = " | ".join(table[code] for table in columns.values())
        lines.append(f"| `{code.value}` | {statuses} | {' | '.join(CAUSES[code.value])} |")
    return "\n".join([*lines, ""])


def _status_columns() -> dict[str, dict[Any, str]]:
    """Return the statuses of each error: of HTTP, of gRPC, and where a protocol has its own."""
    from gateway.protocols.trtis.errors import STATUS  # noqa: PLC0415
    from gateway.registry import PROTOCOLS  # noqa: PLC0415
    from gateway.schema import tensorrt_v1_pb2 as pb  # noqa: PLC0415
    from gateway.wire.errors import GRPC_STATUS, HTTP_STATUS  # noqa: PLC0415

    names = {code: pb.RequestStatusCode.Name(number) for code, number in STATUS.items()}
    found = {"HTTP": _shown(HTTP_STATUS), "gRPC": _shown(GRPC_STATUS), "trtis": _shown(names)}
    for name in sorted(PROTOCOLS.keys() - found.keys()):
        module = importlib.import_module(f"gateway.protocols.{name}.errors")
        for attribute, title in (("STATUS", name), ("GRPC_STATUS", f"{name}, gRPC")):
            own = getattr(module, attribute, None)
            if own is not None and own not in (HTTP_STATUS, GRPC_STATUS):
                found[title] = _shown(own)
    return found


def _shown(statuses: Mapping[Any, Any]) -> dict[Any, str]:
    """Return each status as text: a number, a name, or the words of a row of several."""
    return {
        code: " ".join(str(getattr(each, "name", each)) for each in row if each is not None)
        for code, value in statuses.items()
        for row in [value if isinstance(value, tuple) else (value,)]
    }


def configuration_pages() -> dict[str, str]:
    """Return a page for each top key of the configuration, with all that is below it."""
    source = ROOT / "docs" / "configuration.md"
    linked = with_site_links(source, {**staged_pages(), source: "reference/configuration/x.md"})
    linked = re.sub(r"\]\((#[^)]*)\)", r"](../../configuration.md\1)", linked)
    _, *sections = re.split(r"^## ", linked, flags=re.MULTILINE)
    (top,) = (each for each in sections if each.startswith("Top level\n"))
    head, rule, *rows = re.findall(r"^\| .*\n", top, re.MULTILINE)
    pages, rows_of = {}, defaultdict[str, str](str)
    for row in rows:
        (key,) = re.findall(r"^\| `(\w+)", row)
        rows_of[key] += row
    for key, shown in rows_of.items():
        below = (each for each in sections if re.match(rf"`{key}\b", each))
        parts = "".join(f"## {each.rstrip()}\n\n" for each in below)
        pages[f"reference/configuration/{key}.md"] = f"# `{key}`\n\n{head}{rule}{shown}\n{parts}"
    return pages


def _entries(folder: str) -> str:
    """Return the navigation of all pages of a folder, as YAML on one line."""
    found = []
    for path in sorted((STAGED / folder).glob("*.md")):
        title = path.read_text("utf-8").partition("\n")[0].strip("# `")
        found.append({title: f"{folder}/{path.name}"})
    return yaml.safe_dump(found, default_flow_style=True, width=10_000).strip()


if __name__ == "__main__":
    sys.exit(main())
