"""What the schema cannot know: names of protocols and backends, and their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gateway.app.pipeline_graphs import check_graphs
from gateway.app.signatures import metadata_of
from gateway.app.worker_limits import shared_state
from gateway.config.load import LoadedConfig
from gateway.config.models import BatchingConfig, Config, ListenerConfig
from gateway.config.signatures import SignatureConfig
from gateway.config.yaml_tree import KeyPath, Problem
from gateway.registry import PROTOCOLS, backend, protocol


def check(loaded: LoadedConfig) -> list[Problem]:
    """Return everything wrong with a configuration whose form is right; empty when nothing is."""
    return [loaded.problem(path, message) for path, message in _found(loaded)]


Found = tuple[KeyPath, str]


def _found(loaded: LoadedConfig) -> Iterator[Found]:
    config = loaded.config
    for index, listener in enumerate(config.listeners):
        yield from _in_listener(("listeners", index), listener, config)
    for name, upstream in config.upstreams.items():
        at: KeyPath = ("upstreams", name)
        url = upstream.all_urls[0]
        yield from _raised((*at, "url"), _carried, url.protocol, url.carrier)
        if url.protocol in PROTOCOLS:
            yield from _options((*at, "options"), url.protocol, upstream.options)
    for name, model in config.models.items():
        at = ("models", name)
        if model.backend is not None:
            yield from _raised((*at, "backend"), backend, model.backend)
        if model.signature is not None:
            yield from _raised((*at, "signature"), metadata_of, name, model.signature)
        if model.batching is not None and model.signature is not None:
            yield from _raised((*at, "batching"), _batched, model.batching, model.signature)
    yield from check_graphs(config)
    yield from shared_state(config)


def _in_listener(at: KeyPath, listener: ListenerConfig, config: Config) -> Iterator[Found]:
    for number, name in enumerate(listener.protocols or ()):
        yield from _raised((*at, "protocols", number), protocol, name)
    for number, stream in enumerate(listener.streams):
        place: KeyPath = (*at, "streams", number, "protocol")
        yield from _raised(place, _streamed, stream.protocol, listener)
    for name, options in listener.options.items():
        wrong = list(_options((*at, "options", name), name, options))
        yield from wrong or _raised((*at, "options", name), _own_paths, name, listener)
    if listener.passthrough is not None:
        upstream = config.upstreams[listener.passthrough]
        if upstream.all_urls[0].carrier != "http":
            message = f"upstream {listener.passthrough!r} does not speak HTTP: nothing can pass"
            yield (*at, "passthrough"), message


def _options(path: KeyPath, name: str, options: Any) -> Iterator[Found]:
    def ask() -> None:
        protocol(name).options(options)

    yield from _raised(path, ask)


def _streamed(name: str, listener: ListenerConfig) -> None:
    spec = protocol(name)
    if spec.stream is None:
        raise LookupError(f"protocol {name!r} has no form for byte streams")
    key = "" if spec.stream.names_models else spec.default_model
    if key and listener.default_model is None and key not in listener.options.get(name, {}):
        raise ValueError(
            f"a {name} stream names no model: give its listener a 'default_model', or the "
            f"protocol's option {key!r}"
        )


def _own_paths(name: str, listener: ListenerConfig) -> None:
    """Raise when a protocol's own paths here are another protocol's."""
    http = protocol(name).http
    spoken = listener.protocols or PROTOCOLS
    if http is None or name not in spoken:
        return
    for path in http.own_paths(listener.options[name]):
        for other in spoken:
            there = protocol(other).http
            for prefix in () if there is None or other == name else there.prefixes:
                if path == prefix or path.startswith(f"{prefix}/"):
                    raise ValueError(f"path {path!r} belongs to {other}, which is spoken here too")


def _carried(name: str, carrier: str) -> None:
    carriers = protocol(name).carriers
    if carrier not in carriers:
        known = ", ".join(carriers)
        raise LookupError(f"protocol {name!r} is not carried by {carrier!r}, only by {known}")


def _batched(batching: BatchingConfig, signature: SignatureConfig) -> None:
    most = signature.max_batch_size
    if most == 0:
        raise ValueError("the signature says 'max_batch_size' 0: the model does not batch")
    for size in batching.preferred_sizes:
        if most is not None and size > most:
            raise ValueError(f"preferred size {size}: the signature says 'max_batch_size' {most}")


def _raised(path: KeyPath, ask: Callable[..., Any], *arguments: Any) -> Iterator[Found]:
    try:
        ask(*arguments)
    except (LookupError, ValueError) as error:
        yield path, str(error.args[0])
