"""The documentation: citations and links lead somewhere, examples are valid, sentences are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from gateway.config.load import load_text
from gateway.registry import PROTOCOLS, protocol

ROOT = Path(__file__).parents[2]
SUFFIXES = frozenset({".py", ".pyi", ".md", ".yaml", ".toml", ".proto", ".fbs"})
CITING = sorted(
    path
    for folder in ("gateway", "tests", "schemas", "benchmarks")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES and path.is_file()
)
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "tests").rglob("*.md"),
        ROOT / "schemas" / "README.md",
    ]
)
GUIDES = [ROOT / "docs" / f"{name}.md" for name in ("usage", "deployment", "operations")]
MAX_WORDS = 30
MAX_AVERAGE_WORDS = 18.0

# A citation may continue in the next line of a comment or a docstring.
LINE_BREAK = re.compile(r"\s*\n[ \t]*(?:(?:#|//)[ \t]*)?")
CITATION = re.compile(r'\bdocs/([\w./-]+\.md)((?:`?(?:,? and|[,;]) "[^"]+")*)')
SECTION = re.compile(r'"([^"]+)"')
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |\||#)")
CELL = re.compile(r"(?<!\\)\|")
FLAG = re.compile(r"--[a-z-]+")
FOLDERS = "benchmarks|changes|config|demo|deploy|docs|gateway|release|requirements|schemas|tests"
REPOSITORY_PATH = re.compile(rf"`((?:{FOLDERS})/[^`\s:#]*)")
PLACEHOLDER = re.compile(r"<[^>]*>|\b[A-Z]{3,}\b")
# Pages of protocols cite those of other projects.
OF_OTHERS = re.compile(r"docs/(?!protocols/)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def headings(page: Path) -> list[str]:
    return HEADING.findall(page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the fragments of links to the headings of *page*, as GitHub forms them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)
    }


def citations(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the sections of each citation in *text*."""
    for cited in CITATION.finditer(LINE_BREAK.sub(" ", text)):
        yield cited[1], SECTION.findall(cited[2])


def wrong_citations(text: str) -> Iterator[str]:
    """Yield each citation in *text* of a page or a section that does not exist."""
    for name, sections in citations(text):
        page = ROOT / "docs" / name
        if not page.is_file():
            yield f"no file docs/{name}"
            continue
        found = headings(page)
        yield from (f"no section {each!r} in docs/{name}" for each in sections if each not in found)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page, those in tables and lists included, without code."""
    found = []
    for block in BLOCK.split(CODE.sub("\n\n", text)):
        prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        if prose.startswith("#"):
            continue
        parts = CELL.split(prose) if prose.startswith("|") else [re.sub(r"^[-*] ", "", prose)]
        for part in parts:
            found += re.split(r"(?<=[.!?])\s+", part.strip())
    return [sentence for sentence in found if re.search(r"\w", sentence)]


def word_count(sentence: str) -> int:
    return len(sentence.split())


def test_citations_name_existing_sections() -> None:
    """Each page and section cited by code or a test exists."""
    found = {name_of(path): list(wrong_citations(path.read_text("utf-8"))) for path in CITING}
    assert {} == {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_code_of_a_protocol_cites_its_page(name: str) -> None:
    """A protocol of the registry has a page, and its code cites sections of it."""
    cited: set[str] = set()
    for path in (ROOT / "gateway" / "protocols" / name).rglob("*.py"):
        cited |= {page for page, sections in citations(path.read_text("utf-8")) if sections}
    assert f"protocols/{protocol(name).page}" in cited


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_the_lists_of_protocols_have_its_title_and_page(name: str) -> None:
    """README and docs list each protocol of the registry, by what its `SPEC` says."""
    spec = protocol(name)
    row = f"| [{spec.title}](docs/protocols/{spec.page}) |"
    assert row in (ROOT / "README.md").read_text("utf-8")
    code = f"| `gateway/protocols/{name}` |"
    rows = (ROOT / "docs" / "README.md").read_text("utf-8").splitlines()
    (listed,) = [each for each in rows if each.endswith(code)]
    assert listed.startswith(f"| [protocols/{spec.page}](protocols/{spec.page}) |")


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_servers_of_each_protocol_have_a_guide(name: str) -> None:
    """A how-to page shows how the gateway stands before such a server."""
    folder = ROOT / "docs" / "how-to"
    url = re.compile(rf"\b{name}\+\w+://")
    assert any(url.search(path.read_text("utf-8")) for path in folder.glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_to_existing_files_and_headings(path: Path) -> None:
    """A link within the repository names an existing file and one of its headings."""
    wrong = []
    for file, anchor in LINK.findall(path.read_text("utf-8")):
        if "://" in file:
            continue
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{file}#{anchor}")
    assert [] == wrong


def wrong_paths(text: str) -> Iterator[str]:
    """Yield each path of the repository in the prose of a page that does not exist."""
    for path in REPOSITORY_PATH.findall(CODE.sub("", text)):
        start, _, rest = PLACEHOLDER.sub("*", path).rstrip("/").partition("{")
        choices, _, end = rest.partition("}")
        if not all(any(ROOT.glob(start + each + end)) for each in choices.split(",")):
            yield path


@pytest.mark.migration
@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_paths_of_the_repository_exist(path: Path) -> None:
    """A file or a folder that a page names in its prose is there; `*`, `{a,b}` and `<name>` are patterns."""
    is_protocol = path.parent.name == "protocols"
    found = wrong_paths(path.read_text("utf-8"))
    assert [] == [each for each in found if not (is_protocol and OF_OTHERS.match(each))]


def test_wrong_paths_are_found() -> None:
    """Each choice of braces must exist, and code blocks do not count."""
    text = "`docs/{usage,nowhere}.md` and `gateway/protocols/<name>`, `tests/unit/`\n```\n`docs/x`\n```\n"
    assert ["docs/{usage,nowhere}.md"] == list(wrong_paths(text))


def test_wrong_citations_are_found() -> None:
    """A missing page and a missing section are reported, even for a citation in two lines."""
    page = "docs/protocols/" + "open-inference.md"
    text = f'# Source: {page}, "3. Tensors as JSON" and\n    # "3. Tensors\n    # as XML".\n'
    assert [f"no section '3. Tensors as XML' in {page}"] == list(wrong_citations(text))
    missing = "docs/" + "missing.md"
    assert [f"no file {missing}"] == list(wrong_citations(f"Source: {missing}, section 3."))


def test_pages_name_each_protocol_and_carrier() -> None:
    """The schemes of URLs of the registry."""
    usage, key = (
        (ROOT / "docs" / name).read_text("utf-8") for name in ("usage.md", "configuration.md")
    )
    row = next(line for line in key.splitlines() if line.startswith("| `url` | URL | Proto"))
    for name in PROTOCOLS:
        assert f"`{name}`" in row or f"`{name}+" in row
        for carrier in protocol(name).carriers:
            assert f"`{name}+{carrier}`" in usage


def test_sentences_are_found_in_tables_and_lists() -> None:
    """Each cell and each item counts, and headings and code do not."""
    text = "# Title\n\nOne two. Three\nfour [five](six.md)!\n\n- Item 1.\n\n```\ncode\n```\n| a | b c |\n"
    assert ["One two.", "Three four five!", "Item 1.", "a", "b c"] == sentences(text)


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "ARCHITECTURE.md",
        "docs/usage.md",
        "docs/deployment.md",
        "docs/operations.md",
    ],
)
def test_sentences_are_short(name: str) -> None:
    """A sentence has at most 30 words, and the average is at most 18."""
    found = sentences((ROOT / name).read_text("utf-8"))
    assert [] == [sentence for sentence in found if word_count(sentence) > MAX_WORDS]
    # Cells of tables are short; without them the average is the one of the prose.
    counts = [count for count in map(word_count, found) if count > 3]
    assert sum(counts) / len(counts) <= MAX_AVERAGE_WORDS


def readme_code(language: str) -> list[str]:
    """Return the code in a language of the README and of the pages that continue it."""
    texts = [page.read_text("utf-8") for page in (ROOT / "README.md", *GUIDES)]
    return [code for text in texts for found, code in CODE.findall(text) if found == language]


def test_the_readme_is_short() -> None:
    """It has at most 8 KiB; pages of `docs` have the rest."""
    assert len((ROOT / "README.md").read_bytes()) <= 8 << 10


@pytest.mark.migration
@pytest.mark.parametrize("text", readme_code("yaml"), ids=lambda text: text.split(":")[0])
def test_configuration_in_the_guides_is_valid(text: str) -> None:
    """A YAML example of the README or a guide is valid, alone or as part of a file."""
    rest = {"version": 1, "listeners": [{"http": "127.0.0.1:0"}]}
    models = {name: {"backend": "onnx", "path": name} for name in ("digits", "language")}
    document = rest | yaml.safe_load(text)
    if "pipelines" in document:
        document["models"] = models
    load_text(yaml.safe_dump(document))


def test_flags_in_the_readme_exist() -> None:
    """A flag of `gateway serve` in the README is one that the command has."""
    result = CliRunner().invoke(command_line(["serve"]), ["serve", "--help"])
    flags = set(FLAG.findall(result.stdout))
    lines = [line for code in readme_code("console") for line in code.splitlines()]
    used = {flag for line in lines if "gateway serve" in line for flag in FLAG.findall(line)}
    assert used
    assert set() == used - flags
