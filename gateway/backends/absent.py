"""AbsentModel: stands for a model whose file has not arrived yet; it is never ready."""

from typing import Final

from gateway.api.backend import Arrays, Inputs, Job
from gateway.api.model_spec import ModelSpec
from gateway.backends.base import BackendService, LoadError
from gateway.ir.metadata import ModelMetadata

ABSENT: Final = "gateway.backends.absent:AbsentModel"
"""The name of this backend in a configuration."""


class AbsentModel(BackendService):
    """A model without a file.

    Args:
        spec: Has the name of the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.name)

    async def start(self) -> None:
        """Stay without a model, which is no error."""

    @property
    def metadata(self) -> ModelMetadata:
        """There is none."""
        raise self._absent()

    def load(self) -> None:
        """Load nothing.

        Raises:
            LoadError: In any case.
        """
        raise self._absent()

    def unload(self) -> None:
        """Do nothing."""

    def infer(self, _inputs: Inputs, _job: Job, /) -> Arrays:
        """Reply nothing.

        Raises:
            LoadError: In any case.
        """
        raise self._absent()

    def _absent(self) -> LoadError:
        return LoadError(f"model {self.model.name!r} has not arrived yet", model=self.model)
