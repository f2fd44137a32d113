"""A model of MLServer that does nothing: it returns the outputs in the file of BENCH_ANSWER.

It runs in the environment of MLServer and imports nothing of this project.
"""

# mypy: disable-error-code="misc"
# MLServer is not installed where mypy runs, so its base class is untyped there.

import json
import os
from pathlib import Path

from mlserver import MLModel
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    ResponseOutput,
)


class NoOp(MLModel):
    """Returns the same outputs for any request."""

    async def load(self) -> bool:
        """Read the outputs."""
        outputs = json.loads(Path(os.environ["BENCH_ANSWER"]).read_text())  # noqa: ASYNC240  # once
        self._outputs = [ResponseOutput(**output) for output in outputs]
        return True

    async def predict(self, _request: InferenceRequest) -> InferenceResponse:
        """Handle one request."""
        return InferenceResponse(
            model_name=self.name, model_version=self.version, outputs=self._outputs
        )
