"""The first configuration of a user, as YAML with comments, for `gateway init`.

Lines that begin with `# ` and a word are text. Other lines that begin with `#` are examples:
without the `#` they are valid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.registry import settings

_HEAD = """\
# Configuration of Tensor Gateway, written by `gateway init`.
# Check it: gateway validate FILE. Serve it: gateway serve FILE.
# docs/configuration.md has every key; `gateway schema` prints the JSON Schema for editors.
version: 1
"""

_LISTENERS = "Addresses that clients connect to, in every protocol."
_ADMIN = "Metrics, probes and /status for operators. `address: off` opens no port."
_UPSTREAMS = "Model servers. Each model has its own name at the gateway."
_MODELS = "Models that run in the gateway."
_POLICIES = "Limits of all routes. `0s` is none: calls may take as long as without a gateway."

_EXAMPLE_ADMIN = """\
#admin:
#  address: 127.0.0.1:9901
"""

_EXAMPLE_SIGNATURE = """\
# The server does not tell inputs and outputs. Clients of other protocols need them:
#models:
#  {model}:
#    signature:
#      inputs: [{{name: INPUT, datatype: FP32, shape: [-1, 4]}}]
#      outputs: [{{name: OUTPUT, datatype: FP32, shape: [-1, 2]}}]
"""

_EXAMPLE_ROUTES = """\
# Without routes, every model is served under its own name. A route changes that for the calls that
# match it: another name, several targets by weight, a timeout.
#routes:
#  - name: {name}
#    match: {{model: {name}}}
#    targets: [{target}]
#    timeout: 10s
"""

_EXAMPLE_LIMITS = """\
# Limits of all routes.
#policies:
#  timeout: 60s
#  in_flight: 256
"""

_EXAMPLE_MIGRATION = """\
# Who calls what: `gateway stock` shows it.
#state: {directory: state}
#stock: {}

# Recordings of calls for `gateway replay`. By default they contain no tensors and no headers.
#capture: {directory: recordings, percent: 5}
"""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """What a running server tells.

    Attributes:
        description: Name and version; "" if it tells none.
        models: Metadata of its models.
        untold: Models whose metadata it does not tell.
    """

    description: str = ""
    models: Sequence[ModelMetadata] = ()
    untold: Sequence[str] = ()


def starter_text(config: Mapping[str, Any], servers: Mapping[str, FoundServer]) -> str:
    """Return a configuration as YAML with comments and examples.

    Args:
        config: Its values: listeners, and upstreams or models.
        servers: What the upstreams tell, by their names.
    """
    parts = [_HEAD, _section("listeners", config, _LISTENERS)]
    admin = _section("admin", config, _ADMIN)
    parts.append(admin or f"# {_ADMIN}\n{_EXAMPLE_ADMIN}")
    upstreams = _section("upstreams", config, _UPSTREAMS)
    if upstreams:
        parts.append(upstreams + "".join(_server_lines(*each) for each in servers.items()))
    parts.append(_section("models", config, _MODELS))
    untold = [model for server in servers.values() for model in server.untold]
    if untold and "models" not in config:
        parts.append(_EXAMPLE_SIGNATURE.format(model=_scalar(untold[0])))
    parts.append(_EXAMPLE_ROUTES.format(**_route_of(config, servers)))
    parts.append(_section("policies", config, _POLICIES) or _EXAMPLE_LIMITS)
    if {"stock", "capture"} <= {setting.key for setting in settings()}:
        parts.append(_EXAMPLE_MIGRATION)
    return "\n".join(filter(None, parts))


def _section(key: str, config: Mapping[str, Any], text: str) -> str:
    if key not in config:
        return ""
    return f"# {text}\n" + yaml.safe_dump({key: _plain(config[key])}, sort_keys=False, width=100)


def _plain(value: Any) -> Any:
    """Return *value* with booleans where flags have text."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _server_lines(name: str, server: FoundServer) -> str:
    """Return what a server tells as comments."""
    count = len(server.models) + len(server.untold)
    description = server.description or "a server without a name"
    lines = [f"{name}: {description}, {count} {'model' if count == 1 else 'models'}"]
    for model in server.models:
        versions = f" (versions {', '.join(model.versions)})" if model.versions else ""
        inputs, outputs = _tensors(model.inputs), _tensors(model.outputs)
        lines.append(f"- {model.name}{versions}: {inputs} -> {outputs}")
    lines += [f"- {model}: inputs and outputs unknown" for model in server.untold]
    return "".join(f"  # {_one_line(line)}\n" for line in lines)


def _tensors(tensors: Sequence[TensorMetadata]) -> str:
    return ", ".join(map(_tensor, tensors)) or "?"


def _tensor(tensor: TensorMetadata) -> str:
    datatype = "?" if tensor.datatype is None else tensor.datatype.name
    return f"{tensor.name} {datatype}{'' if tensor.shape is None else list(tensor.shape)}"


def _one_line(text: str) -> str:
    """Return *text* as one comment: a server chooses its names, which may have line breaks."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _route_of(config: Mapping[str, Any], servers: Mapping[str, FoundServer]) -> dict[str, str]:
    for upstream, server in servers.items():
        for name in [*(each.name for each in server.models), *server.untold]:
            return {"name": _scalar(name), "target": f"{{upstream: {_scalar(upstream)}}}"}
    upstreams = list(config.get("upstreams", ()))
    if upstreams:
        return {"name": "example", "target": f"{{upstream: {_scalar(upstreams[0])}}}"}
    model = _scalar(next(iter(config["models"])))
    return {"name": model, "target": f"{{model: {model}}}"}


def _scalar(text: str) -> str:
    """Return a text as a scalar of YAML on one line, also within braces."""
    plain = text.replace("_", "").replace("-", "").isalnum() and text.isascii()
    return (
        text if plain and not text.startswith("-") else yaml.dump(text, default_style='"').strip()
    )
