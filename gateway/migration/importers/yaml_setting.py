"""Settings of YAML and JSON files of other systems, each with its line.

All scalars are text. The meaning of a setting is not decided here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from gateway.config.yaml_tree import KeyPath, YamlTree, path_text, read_tree
from gateway.migration.importers.imported import Unmapped

_MARKER: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_CONTENT: Final = re.compile(r"^\s*[^\s#]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class YamlSetting:
    """A value of a file.

    Attributes:
        value: Text, a list, a mapping, or None if it is absent.
        path: Its keys from the top of the document.
    """

    file: str
    tree: YamlTree
    lines_before: int
    value: Any
    path: KeyPath = ()

    @property
    def line(self) -> int:
        """Line of the key, or of the nearest parent of an absent one."""
        return self.tree.position(self.path, of_key=True)[0] + self.lines_before

    def get(self, *keys: str) -> Self:
        """Return the setting below *keys*, which may be absent."""
        value = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return replace(self, value=value, path=(*self.path, *keys))

    def text(self, *keys: str) -> str:
        """Return a text, or "" for an absent one.

        Raises:
            ValueError: It is a list or a mapping.
        """
        found = self.get(*keys)
        if not isinstance(found.value, str | None):
            raise found.error("expected text")
        return found.value or ""

    def required(self, *keys: str) -> str:
        """Return a text.

        Raises:
            ValueError: It is absent or empty, or no text.
        """
        text = self.text(*keys)
        if not text:
            raise self.get(*keys).error("is missing")
        return text

    def number(self, *keys: str) -> int | None:
        """Return a number from 0, or None for an absent one.

        Raises:
            ValueError: It is no such number.
        """
        text = self.text(*keys)
        if text and not (text.isascii() and text.isdecimal()):
            raise self.get(*keys).error(f"expected a number, got {text!r}")
        return int(text) if text else None

    def all(self, *keys: str) -> list[Self]:
        """Return the entries of a list, which may be absent.

        Raises:
            ValueError: It is no list.
        """
        found = self.get(*keys)
        if not isinstance(found.value, list | None):
            raise found.error("expected a list")
        return [
            replace(self, value=value, path=(*found.path, index))
            for index, value in enumerate(found.value or ())
        ]

    def error(self, text: str) -> ValueError:
        """Return an error with the file, the line and the key."""
        return ValueError(f"{self.file}:{self.line}: {path_text(self.path)}: {text}")

    def unmapped(self, text: str) -> Unmapped:
        """Return a note that the setting has no equivalent."""
        return Unmapped(self.file, self.line, text)


def read_documents(file: Path) -> list[YamlSetting]:
    """Return the documents of a file, each of them a mapping.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not YAML or JSON, or has no document.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8") from error
    if text.lstrip().startswith("{"):  # JSON has tabs between values, and none in strings
        text = text.replace("\t", " ")
    documents = [_read_document(file, part, before) for part, before in _parts(text)]
    if not documents:
        raise ValueError(f"{file} is empty")
    return documents


def _parts(text: str) -> Iterator[tuple[str, int]]:
    """Yield the text of each document, and the number of lines before it."""
    starts = [0, *(each.start() for each in _MARKER.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        part = _MARKER.sub("   ", text[start:end])
        if _CONTENT.search(part):
            yield part, text.count("\n", 0, start)


def _read_document(file: Path, text: str, lines_before: int) -> YamlSetting:
    tree = read_tree(text, {}, file.parent)
    if tree.problems:
        problem = tree.problems[0]
        line = problem.position[0] + lines_before
        raise ValueError(f"{file}:{line}:{problem.position[1]}: {problem.message}")
    if not isinstance(tree.value, dict):
        message = f"{file}:{tree.position(())[0] + lines_before}: expected a mapping"
        raise ValueError(message)  # noqa: TRY004  # the file is wrong, not an argument
    return YamlSetting(str(file), tree, lines_before, tree.value)
