"""The errors of a pipeline: a step fails, or the models do not match."""

from gateway.ir.context import ModelRef
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError, NotReady
from gateway.pipelines.graph import Graph, Step
from gateway.pipelines.signature import MismatchError

# Errors that can mean that the cached metadata of a model are stale.
STALE_METADATA_CODES = frozenset(
    {ErrorCode.INVALID_ARGUMENT, ErrorCode.NOT_READY, ErrorCode.UPSTREAM, ErrorCode.BAD_UPSTREAM}
)


def failure(graph: Graph, step: Step, error: GatewayError) -> GatewayError:
    """Return the error for the caller: the same kind, with the pipeline and the step.

    It has no origin and is never `NotSent`, so that no layer retries the pipeline: other steps may
    have run already.
    """
    kind = ERROR_CLASSES[error.code]
    if error.code is ErrorCode.NOT_FOUND:  # the pipeline exists, although a model does not
        kind = NotReady
    return kind(
        f"pipeline {graph.name!r}, {step}: {error.message}",
        model=ModelRef(graph.name, graph.version),
        limit=error.limit,
    )


def mismatch(graph: Graph, error: MismatchError) -> NotReady:
    """Return the error for the caller if the models do not match."""
    return NotReady(
        f"the models of pipeline {graph.name!r} do not match: {error}",
        model=ModelRef(graph.name, graph.version),
    )
