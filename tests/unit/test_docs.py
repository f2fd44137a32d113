"""The documentation that code cites: the files and sections exist, and so do the links in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = frozenset({".py", ".pyi", ".md", ".yaml", ".toml"})
# It cites a page that does not exist, as an example.
EXAMPLES = ROOT / "tests" / "unit" / "test_protocol_pages.py"
SOURCES = sorted(
    path
    for folder in ("gateway", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES and path.is_file() and path != EXAMPLES
)
PAGES = sorted((ROOT / "docs").rglob("*.md"))

# A citation may go on in the next line of a comment or a docstring.
LINE_BREAK = re.compile(r"\s*\n[ \t]*(?:#[ \t]*)?")
CITATION = re.compile(r'\bdocs/([\w./-]+\.md)((?:`?(?:,? and|[,;]) "[^"]+")*)')
SECTION = re.compile(r'"([^"]+)"')
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def headings(page: Path) -> list[str]:
    return HEADING.findall(page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Return what links to the headings of *page* end in, as GitHub makes it."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)
    }


def wrong_citations(text: str) -> Iterator[str]:
    """Return each citation in *text* of a page or a section that does not exist."""
    for cited in CITATION.finditer(LINE_BREAK.sub(" ", text)):
        page = ROOT / "docs" / cited[1]
        if not page.is_file():
            yield f"no file docs/{cited[1]}"
            continue
        found = headings(page)
        for section in SECTION.findall(cited[2]):
            if section not in found:
                yield f"no section {section!r} in docs/{cited[1]}"


def test_citations_name_existing_sections() -> None:
    """Whoever follows a citation of the documentation in code or tests finds the section."""
    found = {name_of(path): list(wrong_citations(path.read_text("utf-8"))) for path in SOURCES}
    assert {} == {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_to_existing_files_and_headings(path: Path) -> None:
    """Every link of the documentation within the repository leads somewhere."""
    wrong = []
    for file, anchor in LINK.findall(path.read_text("utf-8")):
        if "://" in file:
            continue
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{file}#{anchor}")
    assert [] == wrong


def test_wrong_citations_are_found() -> None:
    """A missing page and a missing section are noticed, also where the citation has two lines."""
    page = "docs/protocols/" + "open-inference.md"
    text = f'# Source: {page}, "3. Tensors as JSON" and\n    # "3. Tensors\n    # as XML".\n'
    assert [f"no section '3. Tensors as XML' in {page}"] == list(wrong_citations(text))
    missing = "docs/" + "missing.md"
    assert [f"no file {missing}"] == list(wrong_citations(f"Source: {missing}, section 3."))
