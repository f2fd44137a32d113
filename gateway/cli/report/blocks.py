"""The parts of a report, and how they are written as HTML and as Markdown.

Texts come from clients, servers and captures: the template escapes everything. Characters that no
font shows are written as escapes. The contents are made by the command that writes the report.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, tostring

from markupsafe import Markup, escape

from gateway.ir.texts import printable, visible

if TYPE_CHECKING:
    from jinja2 import Environment


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


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run, which is shown in full."""

    title: str
    command: str


Block = str | TextTable | Plot | Command
"""A paragraph, a table, a drawing or a command."""


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
    """Return an element of SVG; a text must be the first child, and `_` in attributes means `-`."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): it for name, it in attributes.items()})
    for child in children:
        if isinstance(child, str):
            made.text = visible(child)
        else:
            made.append(child)
    return made


def html_page(title: str, sections: Sequence[Section]) -> bytes:
    """Return one page without scripts and without anything to load."""
    page = _environment().get_template("page.html").render(title=title, sections=sections)
    return page.encode()


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  # 10 ms

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["svg"] = _svg
    environment.filters["whole"] = _whole
    return environment


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _svg(image: Element) -> Markup:
    # The element escapes its texts itself.
    return Markup(tostring(image, encoding="unicode", method="html"))  # noqa: S704


def _whole(text: str) -> Markup:
    return escape(printable(text))


def markdown_page(title: str, sections: Sequence[Section]) -> bytes:
    """Return the same in Markdown with tables, as GitHub and GitLab show it."""
    parts = [f"# {_escaped(title)}"]
    for section in sections:
        parts.append(f"{'#' * section.level} {_escaped(section.title)}")
        parts += [_markdown_of(block) for block in section.blocks if not isinstance(block, Plot)]
    return ("\n\n".join(parts) + "\n").encode()


def _markdown_of(block: str | TextTable | Command) -> str:
    if isinstance(block, str):
        return _escaped(block)
    if isinstance(block, Command):
        return f"{_escaped(block.title)}\n\n    {printable(block.command)}"
    rules = ["---:" if each in block.right else "---" for each in range(len(block.head))]
    lines = [[_escaped(cell) for cell in row] for row in (block.head, *block.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rules, *lines[1:]))


_SPECIAL: Final = re.compile(r"[\\`*_\[\]<>|#&~!@]|(?<=:)/|(?<=www)\.", re.IGNORECASE)


def _escaped(text: str) -> str:
    """Return *text* without any meaning of its own in Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", visible(text))
