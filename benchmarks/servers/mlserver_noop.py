"""A model of MLServer that does nothing: it gives what the file named by BENCH_ANSWER says.

It runs in MLServer's own environment: it imports nothing of this project.
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
    """Answers the same whatever is asked."""

    async def load(self) -> bool:
        """Read the answer."""
        outputs = json.loads(Path(os.environ["BENCH_ANSWER"]).read_text())  # noqa: ASYNC240  # once
        self._outputs = [ResponseOutput(**output) for output in outputs]
        return True

    async def predict(self, _request: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        return InferenceResponse(
            model_name=self.name, model_version=self.version, outputs=self._outputs
        )
