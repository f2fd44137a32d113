"""ModelSpec: the configuration of one in-process model, with readers for its options.

The registry maps a backend's name to a function of a ModelSpec that returns the model's `Versions`
without loading them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.ir.metadata import ModelMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model of the configuration.

    Attributes:
        path: Model file or folder of versions; None for backends without files.
        options: Options of the backend, as in YAML: every scalar is text.
        signature: Declared inputs and outputs, which override those of the model file.
    """

    name: str
    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    signature: ModelMetadata | None = None

    @property
    def required_path(self) -> Path:
        """The path.

        Raises:
            ValueError: It is missing.
        """
        if self.path is None:
            raise ValueError(
                f"model {self.name!r} has no 'path'; expected a model file or a folder of versions"
            )
        return self.path

    @property
    def max_batch_size(self) -> int | None:
        """The option `max_batch_size`; None if it is missing."""
        present = "max_batch_size" in self.options
        return self.integer("max_batch_size", 0, least=0) if present else None

    @property
    def pool_settings(self) -> dict[str, int]:
        """The options `instances` and `queue`, as arguments of `Backend`."""
        return {
            "instances": self.integer("instances", 1),
            "queue": self.integer("queue", 1024, least=0),
        }

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return an option that is a whole number of at least *least*.

        Raises:
            ValueError: It is not.
        """
        text = str(self.options.get(key, default))
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise ValueError(
                f"model {self.name!r}: option {key!r} is {text!r}; "
                f"expected a whole number of at least {least}"
            )
        return int(text)

    def flag(self, key: str) -> bool:
        """Return an option that is true or false; false if it is missing.

        Raises:
            ValueError: It is neither.
        """
        text = str(self.options.get(key, "false")).lower()
        if text not in {"true", "false"}:
            raise ValueError(
                f"model {self.name!r}: option {key!r} is {text!r}; expected true or false"
            )
        return text == "true"

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an option that is one text or a list of them; empty if it is missing."""
        value = self.options.get(key, ())
        return (value,) if isinstance(value, str) else tuple(map(str, value))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return an option that is a mapping; empty if it is missing.

        Raises:
            ValueError: It is not a mapping.
        """
        value = self.options.get(key, {})
        if not isinstance(value, Mapping):
            kind = type(value).__name__
            message = f"model {self.name!r}: option {key!r} is a {kind}; expected a mapping"
            raise ValueError(message)  # noqa: TRY004  # the configuration is invalid
        return value

    def files(self, key: str) -> dict[str, Path]:
        """Return an option that maps names to files; paths are relative to the model's folder."""
        path = self.required_path
        folder = path if path.is_dir() else path.parent
        return {name: folder / str(file) for name, file in self.mapping(key).items()}

    def file_states(self) -> dict[str, tuple[int, int, int]]:
        """Return time, size and inode of each file of the model, by its path.

        These are the file of `path`, or those in its folder and in the folders of versions, and
        class labels. Two equal results mean that no file was written or switched in between.
        """
        if self.path is None:
            return {}
        found = [self.path, *self.path.glob("*"), *self.path.glob("*/*")]
        labels = self.options.get("labels")
        if isinstance(labels, Mapping):
            found += self.files("labels").values()
        return {str(file): _state_of(file) for file in found if file.is_file()}

    def only(self, *names: str) -> None:
        """Reject unknown options.

        Raises:
            ValueError: An option is not among *names*.
        """
        for key in self.options:
            if key not in names:
                raise ValueError(
                    f"model {self.name!r} has an unknown option {key!r}; "
                    f"expected one of {', '.join(names)}"
                )


def _state_of(file: Path) -> tuple[int, int, int]:
    state = file.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino
