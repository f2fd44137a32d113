"""The parts of a report, and how they are written as HTML and as Markdown.

Texts come from clients and captures: the HTML is built as a tree, so that everything is escaped.
Characters that no font shows are written as escapes. `report.py` has the contents.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, tostring

from gateway.ir.texts import visible


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table.

    Attributes:
        right: Indexes of the columns that are aligned to the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing; Markdown has its title only.

    Attributes:
        image: An element of SVG.
    """

    title: str
    image: Element


Block = str | TextTable | Plot
"""A paragraph, a table or a drawing."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    Attributes:
        level: Of its title: 2, or 3 within the section before.
    """

    title: str
    blocks: Sequence[Block]
    level: int = 2


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Return an element; a text child must be the first one, and `_` in attributes means `-`."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): it for name, it in attributes.items()})
    for child in children:
        if isinstance(child, str):
            made.text = visible(child)
        else:
            made.append(child)
    return made


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--back:#fff;--line:#c8ced6}
:root{--old:#6b7280;--new:#0b66c3;--band:#9cc5f0}
@media (prefers-color-scheme:dark){
:root{--ink:#e6e9ed;--back:#14171b;--line:#3c434c;--old:#9aa3af;--new:#6fb1f5;--band:#27496d}
}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--back)}
body{max-width:1100px;margin:2em auto;padding:0 1em}
div{overflow-x:auto}
table{border-collapse:collapse;margin:.6em 0 1.4em;font-variant-numeric:tabular-nums}
td,th{border-bottom:1px solid var(--line);padding:3px 10px;text-align:left;vertical-align:top}
td{overflow-wrap:anywhere}
td.right,th.right{text-align:right;white-space:nowrap}
figure{margin:1em 0}
figcaption{font-size:13px}
svg{width:100%;height:auto;max-width:800px}
svg text{font:11px system-ui,sans-serif;fill:var(--ink)}
.axis{stroke:var(--line)}
.band{fill:var(--band);opacity:.6}
.new{fill:none;stroke:var(--new);stroke-width:1.5}
.old{fill:none;stroke:var(--old);stroke-width:1.5;stroke-dasharray:4 3}
.bar,.dot{fill:var(--new)}
"""


def html_page(title: str, sections: Sequence[Section]) -> bytes:
    """Return one page without scripts and without anything to load."""
    style = Element("style")
    style.text = _STYLE  # a constant: the text of a style is not escaped
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        style,
    )
    body = element("body", element("h1", title))
    for section in sections:
        body.append(element(f"h{section.level}", section.title))
        for block in section.blocks:
            body.append(_html_of(block))
    page = element("html", head, body, lang="en")
    text: bytes = tostring(page, encoding="utf-8", method="html")
    return b"<!doctype html>\n" + text + b"\n"


def _html_of(block: Block) -> Element:
    if isinstance(block, str):
        return element("p", block)
    if isinstance(block, Plot):
        return element("figure", block.image, element("figcaption", block.title))
    kinds = [{"class_": "right"} if each in block.right else {} for each in range(len(block.head))]
    head = [element("th", cell, **kind) for cell, kind in zip(block.head, kinds, strict=True)]
    rows = [
        element("tr", *(element("td", cell, **it) for cell, it in zip(row, kinds, strict=True)))
        for row in block.rows
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", table)


def markdown_page(title: str, sections: Sequence[Section]) -> bytes:
    """Return the same in Markdown with tables, as GitHub and GitLab show it."""
    parts = [f"# {_escaped(title)}"]
    for section in sections:
        parts.append(f"{'#' * section.level} {_escaped(section.title)}")
        parts += [_markdown_of(block) for block in section.blocks if not isinstance(block, Plot)]
    return ("\n\n".join(parts) + "\n").encode()


def _markdown_of(block: str | TextTable) -> str:
    if isinstance(block, str):
        return _escaped(block)
    rules = ["---:" if each in block.right else "---" for each in range(len(block.head))]
    lines = [[_escaped(cell) for cell in row] for row in (block.head, *block.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rules, *lines[1:]))


_SPECIAL: Final = re.compile(r"[\\`*_\[\]<>|#&~!@]|(?<=:)/|(?<=www)\.", re.IGNORECASE)


def _escaped(text: str) -> str:
    """Return *text* without any meaning of its own in Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", visible(text))
