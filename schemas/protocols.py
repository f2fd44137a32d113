"""Write a row for each protocol of the registry into the lists of README.md and docs/README.md.

    python schemas/protocols.py            write what changed
    python schemas/protocols.py --check    write nothing; exit 1 and name the files that differ

A row begins with what the protocol's `SPEC` says. The words behind it are written by hand: a new
row has the carriers, and a row that is there keeps its words.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.api.protocol import ProtocolSpec
from gateway.registry import PROTOCOLS, protocol

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = ROOT / "docs" / "README.md"

_CARRIERS: Mapping[str, str] = {
    "http": "HTTP",
    "grpc": "gRPC",
    "tcp": "TCP",
    "unix": "unix sockets",
}


def link_to(spec: ProtocolSpec, folder: str) -> str:
    """Return the link to the page of a protocol, a file or a URL, from the parent of a folder."""
    return spec.page if "://" in spec.page else f"{folder}/{spec.page}"


def readme_text(text: str) -> str:
    """Return the README with a row for each protocol."""

    def is_own(row: str, spec: ProtocolSpec) -> bool:
        return f"]({link_to(spec, 'docs/protocols')}) |" in row

    def written(row: str, spec: ProtocolSpec) -> str:
        rest = row.split(" | ", 1)[1] if row else f"{_carriers(spec)} | yes | yes |"
        return f"| [{spec.title}]({link_to(spec, 'docs/protocols')}) | {rest}"

    return _with_rows(text, "| in-process |", is_own, written)


def pages_text(text: str) -> str:
    """Return the index of the documentation with a row for each protocol."""

    def is_own(row: str, spec: ProtocolSpec) -> bool:
        return row.endswith(f"| `gateway/protocols/{spec.name}` |")

    def written(row: str, spec: ProtocolSpec) -> str:
        words = row.split(" | ")[1] if row else f"{spec.title}, {_carriers(spec)}"
        page = link_to(spec, "protocols")
        return f"| [{page}]({page}) | {words} | `gateway/protocols/{spec.name}` |"

    return _with_rows(text, "| [protocols/rows.md]", is_own, written)


def _with_rows(
    text: str,
    last: str,
    is_own: Callable[[str, ProtocolSpec], bool],
    written: Callable[[str, ProtocolSpec], str],
) -> str:
    """Return *text* with the row of each protocol; new rows stand before the one that is *last*."""
    lines = text.splitlines()
    for spec in map(protocol, PROTOCOLS):
        found = [at for at, line in enumerate(lines) if line.startswith("|") and is_own(line, spec)]
        if found:
            lines[found[0]] = written(lines[found[0]], spec)
        else:
            end = next(at for at, line in enumerate(lines) if line.startswith(last))
            lines.insert(end, written("", spec))
    return "\n".join(lines) + "\n"


def _carriers(spec: ProtocolSpec) -> str:
    return "; ".join(_CARRIERS.get(name, name) for name in spec.carriers)


def main() -> int:
    """Write both lists, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the lists of protocols.")
    parser.add_argument("--check", action="store_true", help="compare and change nothing")
    check: bool = parser.parse_args().check
    differs = False
    for path, write in ((README, readme_text), (PAGES, pages_text)):
        before = path.read_text(encoding="utf-8")
        text = write(before)
        if text == before:
            continue
        differs = True
        print(f"{path.relative_to(ROOT)} {'differs: make regenerate' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and differs)


if __name__ == "__main__":
    sys.exit(main())
