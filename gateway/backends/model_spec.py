"""Plan: what a configuration says of one in-process model.

What the registry finds by a backend's name is a function of a Plan that returns the model's
`Versions` without loading anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.ir.metadata import ModelMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
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

    def flag(self, key: str) -> bool:
        """Return an option that is true or false; false when it is left out.

        Raises:
            ValueError: It is neither.
        """
        text = str(self.options.get(key, "false")).lower()
        if text not in {"true", "false"}:
            raise ValueError(
                f"model {self.name!r}: option {key!r} is {text!r}, needed is true or false"
            )
        return text == "true"

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an option that is one text or a list of them; empty when it is left out."""
        found = self.options.get(key, ())
        return (found,) if isinstance(found, str) else tuple(map(str, found))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return an option that is a mapping; empty when it is left out.

        Raises:
            ValueError: It is something else.
        """
        found = self.options.get(key, {})
        if not isinstance(found, Mapping):
            message = f"model {self.name!r}: option {key!r} is no mapping"
            raise ValueError(message)  # noqa: TRY004  # the configuration is wrong, not a call
        return found

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
