"""The results of a run, written to a file after each step, so that a run can continue later.

A section has rows, a table as text, the command and the machine. Sections that a run does not
measure stay as they were.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PART = ".part"
"""Ends the name of the file of a run that has not ended."""


class Store:
    """The sections of a run.

    Args:
        path: The file of the results; None stores nothing.
        about: The machine of this run.
        words: The command of this run.
        resume: Continue an interrupted run.
    """

    def __init__(
        self, path: Path | None, about: Mapping[str, object], words: str, *, resume: bool = False
    ) -> None:
        self._path = path
        self._about = dict(about)
        self._words = words
        self.sections: dict[str, Any] = {}
        if path is not None and resume and self._part.exists():
            self.sections = json.loads(self._part.read_text())

    @property
    def _part(self) -> Path:
        assert self._path is not None
        return self._path.with_name(self._path.name + PART)

    def done(self, name: str) -> list[str]:
        """Return the parts of a section that an interrupted run has measured."""
        parts: list[str] = self.sections.get(name, {}).get("done", [])
        return parts

    def put(self, name: str, rows: list[dict[str, object]], table: str, done: list[str]) -> None:
        """Store the current state of a section.

        Args:
            name: The name of the section.
            rows: All rows, with earlier ones.
            table: The rows as text.
            done: Parts that need not be measured again.
        """
        made = self.sections.get(name, {"about": self._about, "words": self._words})
        self.sections[name] = {**made, "rows": rows, "table": table, "done": done}
        if self._path is not None:
            _write(self._part, self.sections)

    def finish(self) -> dict[str, Any]:
        """Replace the sections of the last run, and return all sections."""
        if self._path is None:
            return self.sections
        new_sections = {
            name: {key: value for key, value in section.items() if key != "done"}
            for name, section in self.sections.items()
        }
        sections = {**load(self._path), **new_sections}
        _write(self._path, sections)
        self._part.unlink(missing_ok=True)
        return sections


def load(path: Path) -> dict[str, Any]:
    """Return the sections of results.json, or none without the file."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _write(path: Path, sections: Mapping[str, Any]) -> None:
    new = path.with_name(path.name + ".new")
    texts = [f"{json.dumps(name)}: {_text(section)}" for name, section in sections.items()]
    new.write_text("{" + ",\n".join(texts) + "}\n")
    new.replace(path)


def _text(section: Mapping[str, Any]) -> str:
    """Return a section as JSON, with a line for each row and each other value."""
    lines = [f"{json.dumps(key)}: {json.dumps(section[key])}" for key in section if key != "rows"]
    rows = ",\n  ".join(map(json.dumps, section["rows"]))
    return "{\n " + ",\n ".join([*lines, f'"rows": [\n  {rows}\n ]']) + "\n}"
