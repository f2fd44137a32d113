"""Plan: what a configuration says of one in-process model.

A backend's module exposes `backends(plan)`, which returns one `Backend` for each version without
loading anything; the registry finds it by the backend's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.ir.metadata import ModelMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One model as configured.

    Attributes:
        path: Model file or folder of versions; None where the backend needs none.
        options: The backend's own, as they stand in YAML: every scalar is text.
        signature: Declared inputs and outputs, which win over what the model says itself.
    """

    name: str
    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    signature: ModelMetadata | None = None

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return an option that is a whole number, at least *least*.

        Raises:
            ValueError: It is not.
        """
        text = str(self.options.get(key, default))
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise ValueError(
                f"model {self.name!r}: option {key!r} is {text!r}, "
                f"needed is a whole number of at least {least}"
            )
        return int(text)

    def only(self, *known: str) -> None:
        """Refuse options that are not among *known*.

        Raises:
            ValueError: One is not.
        """
        for key in self.options:
            if key not in known:
                raise ValueError(
                    f"model {self.name!r} has no option {key!r}; there is: {', '.join(known)}"
                )
