"""Checks that the schema cannot do: names of protocols and backends, and their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gateway.app.pipeline_graphs import check_graphs
from gateway.app.signatures import metadata_of
from gateway.app.worker_limits import check_workers
from gateway.config.load import LoadedConfig
from gateway.config.models import BatchingConfig, Config, ListenerConfig
from gateway.config.signatures import SignatureConfig
from gateway.config.yaml_tree import Finding, KeyPath, Problem
from gateway.registry import PROTOCOLS, backend, protocol


def check(loaded: LoadedConfig) -> list[Problem]:
    """Return every problem of a configuration that matches the schema."""
    return [loaded.problem(path, message) for path, message in _findings(loaded.config)]


def _findings(config: Config) -> Iterator[Finding]:
    for index, listener in enumerate(config.listeners):
        yield from _check_listener(("listeners", index), listener, config)
    for name, upstream in config.upstreams.items():
        at: KeyPath = ("upstreams", name)
        url = upstream.all_urls[0]
        yield from _raised((*at, "url"), _check_carrier, url.protocol, url.carrier)
        if url.protocol in PROTOCOLS:
            yield from _raised((*at, "options"), _check_options, url.protocol, upstream.options)
    for name, model in config.models.items():
        at = ("models", name)
        if model.backend is not None:
            yield from _raised((*at, "backend"), backend, model.backend)
        if model.signature is not None:
            yield from _raised((*at, "signature"), metadata_of, name, model.signature)
        if model.batching is not None and model.signature is not None:
            yield from _raised((*at, "batching"), _check_batching, model.batching, model.signature)
    yield from check_graphs(config)
    yield from check_workers(config)


def _check_listener(at: KeyPath, listener: ListenerConfig, config: Config) -> Iterator[Finding]:
    for number, name in enumerate(listener.protocols or ()):
        yield from _raised((*at, "protocols", number), protocol, name)
    for number, stream in enumerate(listener.streams):
        path: KeyPath = (*at, "streams", number, "protocol")
        yield from _raised(path, _check_stream, stream.protocol, listener)
    for name, options in listener.options.items():
        path = (*at, "options", name)
        findings = list(_raised(path, _check_options, name, options))
        yield from findings or _raised(path, _check_own_paths, name, listener)
    if listener.passthrough is not None:
        carrier = config.upstreams[listener.passthrough.upstream].all_urls[0].carrier
        if carrier != "http":
            name = listener.passthrough.upstream
            message = f"upstream {name!r} uses {carrier!r}; passthrough needs an HTTP upstream"
            yield (*at, "passthrough"), message


def _check_options(name: str, options: Any) -> None:
    protocol(name).options(options)


def _check_stream(name: str, listener: ListenerConfig) -> None:
    spec = protocol(name)
    if spec.stream is None:
        raise LookupError(f"protocol {name!r} does not support byte streams")
    key = "" if spec.stream.names_models else spec.default_model
    if key and listener.default_model is None and key not in listener.options.get(name, {}):
        raise ValueError(
            f"a {name} stream names no model; set 'default_model' of the listener, or the "
            f"protocol's option {key!r}"
        )


def _check_own_paths(name: str, listener: ListenerConfig) -> None:
    """Raise ValueError if a path in a protocol's options belongs to another protocol."""
    http = protocol(name).http
    names = listener.protocols or PROTOCOLS
    if http is None or name not in names:
        return
    for path in http.own_paths(listener.options[name]):
        for other in names:
            binding = protocol(other).http
            for prefix in () if binding is None or other == name else binding.prefixes:
                if path == prefix or path.startswith(f"{prefix}/"):
                    raise ValueError(
                        f"path {path!r} belongs to {other}, which this listener serves too"
                    )


def _check_carrier(name: str, carrier: str) -> None:
    carriers = protocol(name).carriers
    if carrier not in carriers:
        names = ", ".join(carriers)
        raise LookupError(f"protocol {name!r} does not support {carrier!r}; expected {names}")


def _check_batching(batching: BatchingConfig, signature: SignatureConfig) -> None:
    limit = signature.max_batch_size
    if limit == 0:
        raise ValueError("the model does not batch: 'max_batch_size' of its signature is 0")
    for size in batching.preferred_sizes:
        if limit is not None and size > limit:
            raise ValueError(
                f"preferred size {size} exceeds 'max_batch_size' {limit} of the signature"
            )


def _raised(path: KeyPath, check: Callable[..., object], *arguments: Any) -> Iterator[Finding]:
    """Yield what *check* raises as a finding about *path*."""
    try:
        check(*arguments)
    except (LookupError, ValueError) as error:
        yield path, str(error.args[0])
