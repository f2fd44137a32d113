"""The base class of the models of the configuration file."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Base class: frozen, and unknown keys are errors.

    The docstrings of attributes describe the keys. Only `schema.py` reads them, from the sources.

    Attributes:
        example: YAML of a file with the section, for the reference; see schemas/configuration.py.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    example: ClassVar[str] = ""
