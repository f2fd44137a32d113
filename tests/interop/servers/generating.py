"""A model in the gateway's own process that does what `generate_text` does in Triton."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype


@declares(
    inputs=(TensorMetadata("text_input", Datatype.BYTES, (1,)),),
    outputs=(TensorMetadata("text_output", Datatype.BYTES, (1,)),),
)
def generate_text(inputs: dict[str, Any], job: Job) -> Iterator[dict[str, Any]]:
    """Yield the words of text_input, one a response if `stream` is set, otherwise all in one."""
    words = inputs["text_input"][0].decode().split()[: int(job.parameters.get("max_tokens", 1000))]
    for text in words if job.parameters.get("stream") else [" ".join(words)]:
        yield {"text_output": np.array([text.encode()], object)}
