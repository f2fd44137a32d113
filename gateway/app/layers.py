"""The layers of every chain, in the order in which a call passes them.

`LAYERS` decides the order within a chain: `build_chain` builds each chain from it, and
`gateway.cli.configuration` prints it. Layers of installed packages come where it says `PACKAGES`,
and those that read tensors where it says `READERS`, if a chain has such a place.

Wrappers that depend on a protocol or on the state of the gateway stand between the chains. A call
passes them in this order, each only where it is needed:

- before "listener": `NoteCodec` (`otlp`), `ResolveModelKeys` (`listeners.py`), and
  `FinishSequences` (`gateway.py`) while sequences end in an earlier graph
- in `Router`, for questions about the server: `UpstreamQuestions` (`service_graph.py`)
- before "target", in a cut-over: `WatchTarget` (`routes.py`)
- after "endpoint", before `Upstream`: `HandOver`, `DialectDetectingUpstream`, `KnownModels`,
  `DivideRows`, `QuestionHeaders` (`upstreams.py`)

`app/chains` builds the layers that need objects of the gateway, by `LayerContext`. The table has a
chain for a listener, a route, a target, an endpoint, and models that run in the gateway. Each chain
is built at start, and `gateway explain --layers` prints them. Every chain has two entries.
Inference takes the one that skips the layers for questions only, such as metadata and unload. A
layer with nothing to do after a call returns what the inner service returned (`ReplyCoroutine`). It
then adds no frame to the await chain.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from gateway.api.layer import Calls, Entries, Layer
from gateway.app.build.chain_context import ChainContext
from gateway.app.build.package_layers import guarded, reads
from gateway.app.chains import listener, model, upstream
from gateway.app.chains.rows import PACKAGES, READERS, End, Row
from gateway.policies import (
    cache,
    forward_headers,
    prioritize,
    reject_sequences,
    rename,
    signatures,
    tap,
    transform_tensors,
)
from gateway.policies.access.layers import OWN_REGIONS, OWN_SEQUENCES
from gateway.policies.batch.layers import BATCH, DROP_HEADERS, NORMALIZE_OUTPUTS
from gateway.policies.limits import fair_share, hedge, policy, sequences, shed_load
from gateway.policies.limits.adaptive.overload import ADAPTIVE_LAYER
from gateway.policies.shared_memory.layer import SHARED_MEMORY_LAYER
from gateway.registry import extension_layers, layers
from gateway.routing.balance import READINESS, STICKY_BY
from gateway.routing.balancing.endpoint_keys import ENDPOINT_KEYS, check_hash_keys
from gateway.routing.rolling.settings import MODEL_CALLS_LAYER, ROLLING_LOAD_LAYER
from gateway.service import Service, bound_call, bound_inference

SHARED_MODEL: Final = "upstream model"
"""The chain of a model of an upstream that has a batch queue or a cache."""

LAYERS: Final[Mapping[str, tuple[Row, ...]]] = MappingProxyType(
    {
        "listener": (
            listener.OBSERVE,
            listener.TRACE_CALL,
            *extension_layers("listener"),
            shed_load.LAYER,
            PACKAGES,
            listener.OWN_FORM,
            listener.SERVER_STATUS,
            listener.UNKNOWN_MODELS,
            listener.USAGE_STATISTICS,
            listener.COUNT_MODELS,
            listener.REFRESH_MODEL_INDEX,
            OWN_SEQUENCES,
            OWN_REGIONS,
            SHARED_MEMORY_LAYER,
            READERS,
            End("Router", "chooses the route by model, version and protocol"),
        ),
        "route": (
            tap.LAYER,
            sequences.LAYER,
            prioritize.LAYER,
            fair_share.LAYER,
            PACKAGES,
            policy.LAYER,
            policy.ATTEMPT_LAYER,
            hedge.LAYER,
            End(
                "Balance",
                "chooses one of several targets by weight (Discover: the upstream of the model)",
                settings=(READINESS, STICKY_BY),
            ),
        ),
        "target": (
            rename.LAYER,
            *transform_tensors.LAYERS,
            PACKAGES,
            End("PerModelService", "sends batched or cached models to the chain 'upstream model'"),
        ),
        SHARED_MODEL: (
            PACKAGES,
            forward_headers.SHARED_LAYER,
            model.BUFFER_BODY,
            model.COMPLETE,
            NORMALIZE_OUTPUTS,
            cache.LAYER,
            BATCH,
            End("Endpoints", "the chain 'upstream', with the endpoint that balancing chooses"),
        ),
        "upstream": (
            ROLLING_LOAD_LAYER,
            *extension_layers("upstream"),
            ADAPTIVE_LAYER,
            PACKAGES,
            End(
                "Endpoints",
                "the chain 'endpoint' of the endpoint that balancing chooses",
                settings=ENDPOINT_KEYS,
                check=check_hash_keys,
            ),
        ),
        "endpoint": (
            MODEL_CALLS_LAYER,
            forward_headers.LAYER,
            READERS,
            upstream.CLASSIFY,
            upstream.COMPLETE,
            upstream.MODEL_CONFIGURATION,
            signatures.LAYER,
            upstream.CONFIRM_UNLOAD,
            PACKAGES,
            upstream.TRACE_ATTEMPT,
            End("Upstream", "encodes the call, sends it and decodes the response"),
        ),
        "model": (
            *extension_layers("model"),
            reject_sequences.LAYER,
            PACKAGES,
            DROP_HEADERS,
            model.BUFFER_BODY,
            model.CLASSIFY,
            model.COMPLETE,
            NORMALIZE_OUTPUTS,
            cache.LAYER,
            BATCH,
            model.MODEL_CONFIGURATION,
            signatures.LOCAL_LAYER,
            model.TRACE_INSIDE,
            End("ReloadableModel", "runs the model"),
        ),
        "pipeline": (*model.PIPELINE, PACKAGES, End("Pipeline", "runs the steps")),
    }
)


def build_chain(chain: str, end: Service, at: ChainContext) -> Service:
    """Return the outermost layer of a chain.

    Args:
        chain: A key of `LAYERS`.
        end: The service that the innermost layer calls.
        at: What the layers may use.

    Raises:
        LookupError: A layer needs a part that *at* does not have.
    """
    outermost, inference = end, bound_inference(end)
    inner = Entries(bound_call(end), inference, inference)
    for layer in reversed(list(layers_of(chain))):
        built = layer.build(inner, at.of(layer))
        if built is not None:
            outermost = built
            inner = _entries(built, layer.calls, inner)
    return outermost


def _entries(built: Service, calls: Calls, inner: Entries) -> Entries:
    """Return the ways into a layer and what is inside it."""
    questions, inference = bound_call(built), bound_inference(built)
    if calls is Calls.QUESTIONS:
        return Entries(questions, inner.inference, inner.plain)
    # Layers that have nothing to do for a plain inference say so.
    plain = inner.plain if getattr(built, "is_passed_by_plain", False) else inference
    return Entries(questions, inference, plain)


def layers_of(chain: str) -> Iterator[Layer]:
    """Yield the layers of a chain, those of installed packages in their places."""
    for row in LAYERS[chain]:
        if isinstance(row, Layer):
            yield row
        elif row in (PACKAGES, READERS):
            yield from _of_packages(chain, row)


def _of_packages(chain: str, row: str) -> Iterator[Layer]:
    """Yield the layers of installed packages in one of their places."""
    of = "model" if chain == SHARED_MODEL else chain
    has_readers = READERS in LAYERS[chain]
    for name, layer in layers().items():
        if layer.chain == of and (not has_readers or reads(layer) is (row == READERS)):
            yield guarded(name, layer)


def own_layers() -> Iterator[Layer | End]:
    """Yield the layers of the gateway itself, and the ends of their chains."""
    for rows in LAYERS.values():
        yield from (row for row in rows if not isinstance(row, str))
