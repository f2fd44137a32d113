"""A KServe ModelServer on the loopback with a model that does nothing.

It runs in the environment of KServe, with the folder of `serve.py` of the interop tests on its
path. That module keeps KServe off other addresses. BENCH_ANSWER names a file with the outputs,
BENCH_MODEL the model.
"""

# mypy: disable-error-code="misc"
# KServe is not installed where mypy runs, so its base class is untyped there.

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import serve  # type: ignore[import-not-found]  # of tests/interop/servers/kserve
from kserve import (
    InferOutput,
    InferRequest,
    InferResponse,
    Model,
    ModelServer,
)
from kserve.model_server import parser

_DTYPES = {"INT32": np.int32, "FP32": np.float32}


class NoOp(Model):
    """Returns the same outputs for any request."""

    def __init__(self, name: str, outputs: list[dict[str, Any]]) -> None:
        super().__init__(name)
        self.ready = True
        self._outputs = [(each["name"], each["datatype"], _array(each)) for each in outputs]
        columns = {name: array.tolist() for name, _, array in self._outputs}
        rows = zip(*columns.values(), strict=True)
        self._rows = [dict(zip(columns, row, strict=True)) for row in rows]

    def load(self) -> bool:
        """Become ready."""
        self.ready = True
        return True

    async def predict(self, request: Any, *_: object, **__: object) -> Any:
        """Handle one request of Open Inference, or of V1."""
        if not isinstance(request, InferRequest):
            return {"predictions": self._rows}
        outputs = []
        for name, datatype, array in self._outputs:
            output = InferOutput(name=name, shape=list(array.shape), datatype=datatype)
            output.set_data_from_numpy(array, binary_data=True)
            outputs.append(output)
        return InferResponse(
            response_id=request.id or "",
            model_name=self.name,
            infer_outputs=outputs,
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )


def _array(output: dict[str, Any]) -> Any:
    return np.array(output["data"], _DTYPES[output["datatype"]]).reshape(output["shape"])


def main() -> None:
    """Serve on the loopback until a signal."""
    serve._bind_loopback_only()  # noqa: SLF001  # what it is for
    argparse.ArgumentParser(parents=[parser], conflict_handler="resolve").parse_known_args()
    outputs = json.loads(Path(os.environ["BENCH_ANSWER"]).read_text())
    ModelServer(workers=1).start([NoOp(os.environ["BENCH_MODEL"], outputs)])


if __name__ == "__main__":
    main()
