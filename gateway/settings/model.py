"""The base class of the models of the configuration file."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Base class: frozen, and unknown keys are errors.

    The docstrings of attributes describe the keys. Only `schema.py` reads them, from the sources.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
