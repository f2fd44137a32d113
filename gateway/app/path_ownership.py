"""Which protocol of a listener owns each HTTP path that its protocols claim."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.api.protocol import HttpBinding
from gateway.config.models import ListenerConfig
from gateway.registry import protocol, protocol_names


def owned_paths(config: ListenerConfig) -> Mapping[str, tuple[str, ...]]:
    """Return the paths of each HTTP protocol of a listener, by the name of the protocol.

    A path that a protocol yields belongs to another one that claims it. Of several protocols that
    yield it, the first has it.
    """
    claims = _claims(config)
    found: dict[str, tuple[str, ...]] = {}
    for name, (binding, paths) in claims.items():
        found[name] = tuple(
            [path for path in paths if path not in binding.yielded or _owner(path, claims) == name]
        )
    return found


def shared_paths(name: str, config: ListenerConfig) -> tuple[str, ...]:
    """Return the paths that the protocol *name* owns and another one of the listener yields."""
    claims = _claims(config)
    others = [(binding, paths) for other, (binding, paths) in claims.items() if other != name]
    return tuple(
        [
            path
            for path in owned_paths(config).get(name, ())
            if any(path in paths and path in binding.yielded for binding, paths in others)
        ]
    )


def exact_paths(name: str, config: ListenerConfig) -> tuple[str, ...]:
    """Return the whole paths that the options of a listener add to a protocol."""
    spec = protocol(name)
    return () if spec.http is None else spec.http.exact_paths(config.options.get(spec.name, {}))


def conflicts(config: ListenerConfig) -> Iterator[str]:
    """Yield the error for each path that two protocols of a listener claim and neither yields.

    Some protocols that the listener lists by name do not yield a path to an option of another one.
    """
    owners: dict[str, str] = {}
    claims = _claims(config)
    given = {
        path: name
        for name, (binding, _) in claims.items()
        for path in binding.own_paths(config.options.get(name, {}))
    }
    for name, (binding, paths) in claims.items():
        for path in (*paths, *exact_paths(name, config)):
            if path not in binding.yielded:
                other = owners.setdefault(path, name)
            elif binding.keeps_if_listed and config.protocols is not None:
                other = given.get(path, name)
            else:
                continue
            if other != name:
                yield (
                    f"path {path!r} belongs to {other} and to {name}; expected only one of them "
                    "(protocols of the listener)"
                )


def check_option_paths(name: str, listener: ListenerConfig) -> None:
    """Raise ValueError if a path in a protocol's options belongs to another protocol."""
    names = listener.protocols or protocol_names()
    http = protocol(name).http
    if http is None or name not in names:
        return
    for path in http.own_paths(listener.options[name]):
        for other in names:
            binding = protocol(other).http
            for prefix in () if binding is None or other == name else binding.prefixes:
                is_yielded = binding is not None and path in binding.yielded
                if not is_yielded and (path == prefix or path.startswith(f"{prefix}/")):
                    raise ValueError(
                        f"path {path!r} belongs to {other}, which this listener serves too"
                    )


_Claims = Mapping[str, tuple[HttpBinding, tuple[str, ...]]]


def _claims(config: ListenerConfig) -> _Claims:
    found: dict[str, tuple[HttpBinding, tuple[str, ...]]] = {}
    for name in config.protocols or protocol_names():
        spec = protocol(name)
        binding = spec.http
        if binding is not None:
            options: Mapping[str, Any] = config.options.get(spec.name, {})
            found[name] = binding, (*binding.prefixes, *binding.own_paths(options))
    return found


def _owner(path: str, claims: _Claims) -> str:
    """Return the protocol that owns a path which some yield."""
    names = [name for name, (_, paths) in claims.items() if path in paths]
    firm = [name for name in names if path not in claims[name][0].yielded]
    return (firm or names)[0]
