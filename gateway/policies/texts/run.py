"""Chooses what runs a task."""

from collections.abc import AsyncIterator

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ModelMetadata
from gateway.ir.text_tasks import Embed, Generate, Rerank
from gateway.policies.texts.completions import complete, stream_completion
from gateway.policies.texts.embeddings import embed
from gateway.policies.texts.rerank import rerank
from gateway.policies.texts.servers import ask_server, is_for_server, pieces_of, request_of
from gateway.policies.texts.task import Infer, Stream, TaskRun


async def run_task(
    call: InferRequest, metadata: ModelMetadata, infer: Infer, stream: Stream
) -> InferResponse:
    """Return the reply to a call with a task.

    Args:
        call: The call.
        metadata: Of its model, with the maximum batch size.
        infer: Sends calls of tensors to the model.
        stream: Sends calls of tensors whose replies are a stream.

    Raises:
        GatewayError: The model does not serve the task, or fails.
    """
    assert call.texts is not None  # noqa: S101  # the caller looks at it
    run = TaskRun(call, metadata, infer, stream)
    task = call.texts
    if is_for_server(run, task):
        return await ask_server(run, task)
    if isinstance(task, Embed):
        return await embed(run, task)
    if isinstance(task, Rerank):
        return await rerank(run, task)
    return await complete(run, task)


async def run_stream_task(
    call: InferRequest, metadata: ModelMetadata, infer: Infer, stream: Stream
) -> AsyncIterator[InferResponse]:
    """Return the replies to a call with a task whose caller reads a stream.

    Raises:
        GatewayError: The model does not serve the task.
    """
    if not isinstance(call.texts, Generate):
        raise Unsupported("only completions have streams", model=call.model)
    run = TaskRun(call, metadata, infer, stream)
    if is_for_server(run, call.texts):
        return pieces_of(await stream(request_of(run, call.texts)))
    return await stream_completion(run, call.texts)
