"""What a pipeline says when one of its steps fails, or its models do not fit together."""

from __future__ import annotations

from gateway.ir.context import ModelRef
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError, NotReady
from gateway.pipelines.graph import Graph, Step
from gateway.pipelines.signature import MisfitError

# What is said where a model is no longer as it was when its metadata were asked for.
DOUBTFUL = frozenset(
    {ErrorCode.INVALID_ARGUMENT, ErrorCode.NOT_READY, ErrorCode.UPSTREAM, ErrorCode.BAD_UPSTREAM}
)


def failure(graph: Graph, step: Step, error: GatewayError) -> GatewayError:
    """Return what the caller is told: the same kind of error, and where it happened.

    Nothing of an upstream's own answer goes with it, and nothing that would have the whole
    pipeline run again: other steps may have been answered.
    """
    kind = ERROR_CLASSES[error.code]
    if error.code is ErrorCode.NOT_FOUND:  # the pipeline is there, whoever is missing
        kind = NotReady
    return kind(
        f"pipeline {graph.name!r}, {step}: {error.message}",
        model=ModelRef(graph.name, graph.version),
        limit=error.limit,
    )


def misfit(graph: Graph, error: MisfitError) -> NotReady:
    """Return what the caller is told of models that do not fit together."""
    return NotReady(
        f"pipeline {graph.name!r} does not fit together: {error}",
        model=ModelRef(graph.name, graph.version),
    )
