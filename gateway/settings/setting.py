"""Setting: a key of the configuration file that one part of the gateway owns."""

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from gateway.settings.model import Model

T = TypeVar("T")

Place = Literal["top", "policies", "route", "target", "listener", "upstream", "model"]
"""The section of the file in which a key stands; "top" is the file itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting(Generic[T]):
    """A key, which the schema, the documentation and the checks of the file learn from here.

    Attributes:
        key: The name in YAML.
        type: The type that pydantic validates.
        default: The value where the file has none.
        help: The description in the schema. It ends with the default: "Default: `60s`."
        places: The sections that have the key.
        needs_restart: Whether a reload refuses a change.
    """

    key: str
    type: Any
    default: T
    help: str
    places: tuple[Place, ...]
    needs_restart: bool = False

    def of(self, *sections: Model | None) -> T:
        """Return the value in the first section of the file that sets the key, or the default.

        A key without a value lets the next section decide.
        """
        found: Any = self.default
        for section in sections:
            if section is not None and self.key in section.model_fields_set:
                found = getattr(section, self.key)
                if found is not None:
                    break
        return cast("T", found)
