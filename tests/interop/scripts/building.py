"""Turning a step into the arguments of tritonclient's `infer`, alike for all of its clients."""

from typing import Any

from tests.interop.scripts.steps import Infer, Transport, Wanted
from tests.interop.scripts.tensors import Tensor, as_array


def arguments(step: Infer, module: Any, transport: Transport) -> dict[str, Any]:
    """Return the keyword arguments of `infer` for *step*.

    Args:
        step: What to do.
        module: `tritonclient.http` or `.grpc`, or the `aio` of either.
        transport: Which of the two that is: their classes take different arguments.
    """
    binary = transport == "http"
    # A client writes into the headers that it is given.
    options = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in step.options.items()
    }
    built: dict[str, Any] = {
        "model_name": step.model,
        "inputs": [_input(each, module, step, binary=binary) for each in step.inputs],
        **options,
    }
    if step.outputs is not None:
        built["outputs"] = [_output(each, module, step, binary=binary) for each in step.outputs]
    return built


def compression(step: Infer, transport: Transport) -> dict[str, Any]:
    """Return the keyword arguments that choose the compression of a call that is no stream."""
    if transport == "grpc":
        return {"compression_algorithm": step.request_compression}
    return {
        "request_compression_algorithm": step.request_compression,
        "response_compression_algorithm": step.response_compression,
    }


def _input(tensor: Tensor, module: Any, step: Infer, *, binary: bool) -> Any:
    infer_input = module.InferInput(tensor.name, list(tensor.shape), tensor.datatype)
    options = {"binary_data": step.binary_in} if binary else {}
    return infer_input.set_data_from_numpy(as_array(tensor), **options)


def _output(output: Wanted, module: Any, step: Infer, *, binary: bool) -> Any:
    options = {"binary_data": step.binary_out} if binary else {}
    return module.InferRequestedOutput(output.name, class_count=output.classes, **options)
