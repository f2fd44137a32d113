"""Runs a task on texts: by a server that takes texts itself, or as calls of tensors.

For such a server the members of the task become parameters of the request.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import numpy as np

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import JsonParameter, Parameter
from gateway.ir.errors import InvalidMember, Unsupported
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.tensor import array_tensor, as_items, as_numpy
from gateway.ir.text_tasks import (
    COMPLETION_TOKENS,
    FINISH_REASON,
    OF_SERVER,
    PROMPT_TOKENS,
    STOP,
    Embed,
    Generate,
    Rerank,
    TextServer,
    TextTask,
)
from gateway.policies.divide_rows import join_replies
from gateway.policies.texts.completions import complete, stream_completion
from gateway.policies.texts.embeddings import embed
from gateway.policies.texts.rerank import rerank
from gateway.policies.texts.signature import UNSUPPORTED_MODEL
from gateway.policies.texts.task import Infer, Stream, TaskRun, is_ids

_TOKENS: Final = ("token_ids", "token_counts")
_KEYS: Final = {Embed: "embeddings", Rerank: "rerank", Generate: "completions"}


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


def is_for_server(run: TaskRun, task: TextTask) -> bool:
    """Return whether the server of the model does the task, and nothing else is declared.

    Raises:
        InvalidMember: The server does another task only.
    """
    server = run.metadata.declarations.get(OF_SERVER)
    if not isinstance(server, TextServer):
        return False
    forms = run.forms()
    if forms is not None and getattr(forms, _KEYS[type(task)]) is not None:
        return False
    if type(task) is not server.task:
        raise InvalidMember(
            f"model {str(run.ref)!r} is for {_KEYS[server.task]}; expected such a request (task of "
            "the upstream)",
            member="model",
            reason=UNSUPPORTED_MODEL,
            model=run.ref,
        )
    return True


async def ask_server(run: TaskRun, task: TextTask) -> InferResponse:
    """Return the reply of the server, several joined for more token ids than one request has."""
    if not is_ids(run.call.inputs[0]):
        return await run.infer(request_of(run, task))
    ids, counts = map(as_numpy, run.call.inputs)
    rows = np.split(ids, np.cumsum(counts)[:-1])
    most = run.metadata.max_batch_size or len(rows)
    replies = []
    for begin in range(0, len(rows), most):
        # Rows of ids have no common length, and so no tensor of the model.
        parts = (np.concatenate(rows[begin : begin + most]), counts[begin : begin + most])
        named = [array_tensor(name, part) for name, part in zip(_TOKENS, parts, strict=True)]
        replies.append(await run.infer(run.plain(named, parameters=_parameters(task))))
    return join_replies(replies) if len(replies) > 1 else replies[0]


def request_of(run: TaskRun, task: TextTask) -> InferRequest:
    """Return the call of a task with its members as parameters."""
    declared = [each.name for each in run.metadata.inputs]
    inputs = zip(run.call.inputs, declared, strict=False)
    return run.plain(
        [tensor.renamed(name) for tensor, name in inputs], parameters=_parameters(task)
    )


async def pieces_of(
    items: AsyncIterator[InferResponse],
) -> AsyncGenerator[InferResponse, None]:
    """Yield the pieces of a stream; the last item has the reason of the end, and the tokens."""
    parameters: dict[str, Parameter] = {FINISH_REASON: STOP}
    last: InferResponse | None = None
    try:
        async for item in items:
            if item.error is not None:
                raise item.error
            for name in (FINISH_REASON, PROMPT_TOKENS, COMPLETION_TOKENS):
                if name in item.parameters:
                    parameters[name] = item.parameters[name]
            last = item
            if any(map(len, as_items(item.outputs[0]) if item.outputs else ())):
                yield item.changed(is_final=False)
    finally:
        await close_stream(items)
    if last is not None:
        yield last.changed(outputs=(), parameters=parameters, is_final=True)


def _parameters(task: TextTask) -> dict[str, Parameter]:
    if isinstance(task, Embed):
        found: dict[str, Any] = {
            "dimensions": task.dimensions,
            "input_type": task.input_type,
            "encoding_format": task.encoding,
        }
    elif isinstance(task, Rerank):
        found = {"max_tokens_per_doc": task.max_tokens_per_document}
    else:
        found = dict(task.members)
        if task.stop:
            found["stop"] = JsonParameter(json.dumps(task.stop))
    return {name: value for name, value in found.items() if value not in (None, "")}
