"""The pages in docs/protocols exist, their links resolve, and code cites sections that they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.registry import PROTOCOLS

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page for page in sorted((ROOT / "docs" / "protocols").glob("*.md"))}
PAGE_OF = {
    "graphpipe": "graphpipe.md",
    "grps": "grps.md",
    "oip": "open-inference.md",
    "trtis": "tensorrt-v1.md",
}
SOURCES = [
    path
    for folder, pattern in (("gateway", "*.py"), ("tests", "*.py"), ("schemas", "*/*.*"))
    for path in sorted((ROOT / folder).rglob(pattern))
    if path != Path(__file__)
]

# Titles begin with a number: "4. Messages".  A line may break within a list of them.
_TITLE = r'"(\d+(?:\.\d+)?\.? [^"]+)"'
_CITED = re.compile(rf"docs/protocols/([\w-]+\.md)((?:(?:,|;| and|\s|#|//)+{_TITLE})*)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def headings(page: Path) -> list[str]:
    return _HEADING.findall(page.read_text())


def anchor(heading: str) -> str:
    """Return the fragment that a heading has in links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def citations(text: str) -> list[tuple[str, str]]:
    """Return page and title of each section that *text* cites; "" where it cites the page."""
    found = []
    for page, titles, _ in _CITED.findall(text):
        listed = [re.sub(r"\s+(?:# |// )?", " ", title) for title in re.findall(_TITLE, titles)]
        found += [(page, title) for title in listed or [""]]
    return found


def test_every_protocol_has_a_page_that_code_cites() -> None:
    """A protocol of the registry has one page, and its code refers to it."""
    assert set(PROTOCOLS) == set(PAGE_OF)
    for name, page in PAGE_OF.items():
        folder = ROOT / "gateway" / "protocols" / name
        cited = {found for path in folder.rglob("*.py") for found in citations(path.read_text())}
        assert page in PAGES
        assert any(title for where, title in cited if where == page)


def test_cited_sections_exist() -> None:
    """A comment or docstring cites a section by the title that the page has."""
    known = {page: headings(path) for page, path in PAGES.items()}
    missing = [
        f"{path.relative_to(ROOT)}: {page}, {title!r}"
        for path in SOURCES
        for page, title in citations(path.read_text())
        if page not in known or (title and title not in known[page])
    ]
    assert missing == []


@pytest.mark.parametrize("page", [*PAGES.values(), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"])
def test_links_resolve(page: Path) -> None:
    """A relative link names a file that exists, and a fragment one of its headings."""
    for link in _LINK.findall(page.read_text()):
        if link.startswith("http"):
            continue
        name, _, fragment = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if fragment:
            assert fragment in [anchor(heading) for heading in headings(target)], link


def test_titles_are_found_across_lines_and_comments() -> None:
    """What the other tests rely on: a list of titles may be broken anywhere."""
    text = 'docs/protocols/a.md, "1. One", "2. Two\nmore" and\n# "3.1 Three"; RFC 9110, "9. Four".'
    assert [("a.md", "1. One"), ("a.md", "2. Two more"), ("a.md", "3.1 Three")] == citations(text)
