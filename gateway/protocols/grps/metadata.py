"""Metadata of servers and models to and from YAML text.

A grps server sends its configuration as text, without names and types of tensors.  The gateway
writes the same members and adds the tensors, which another gateway reads.  Untrusted text is read
without tags, aliases or deep nesting, and every scalar as text.

Source: docs/protocols/grps.md, "15. Metadata and the status page".
"""

from typing import Any, Final

import yaml

from gateway.ir.errors import GatewayError, MalformedMessage, ModelNotFound, TooLarge
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    RepositoryEntry,
    ServerStatus,
    TensorMetadata,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.grps.datatypes import BY_DATATYPE, BY_NAME, widened_datatype

# All scalars are text: YAML's types are neither guessed nor constructed.
_Loader: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_TEXT_BYTES: Final = 1 << 20
_DEPTH: Final = 32
_LISTED: Final = 10_000
_INTEGER_DIGITS: Final = 19

_OPENS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSES = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def write_server(status: ServerStatus) -> str:
    """Return the metadata of all models, one entry for each version."""
    entries: list[dict[str, Any]] = []
    for model in status.models:
        metadata = model.metadata
        listed = [entry.version for entry in model.entries if entry.version]
        versions = listed or list(metadata.versions) or [""]
        entries += [_entry(metadata, version) for version in versions]
    return _dumped({"models": entries})


def write_model(metadata: ModelMetadata, version: str) -> str:
    """Return the metadata of one model; *version* is the requested one, "" for any."""
    return _dumped(_entry(metadata, version or (metadata.versions or ("",))[-1]))


def read_models(text: str, limits: MessageLimits) -> tuple[RepositoryEntry, ...]:
    """Return the models in a server's metadata, which has no states.

    Raises:
        MalformedMessage: The text is not such YAML.
        TooLarge: A limit is exceeded.
    """
    models = _loaded(text, "server metadata").get("models")
    if not isinstance(models, list):
        raise MalformedMessage("server metadata has no list of models")
    check_count("models in server metadata", len(models), _LISTED, "models")
    entries = []
    for model in models:
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            raise MalformedMessage("server metadata lists a model without a name")
        version = model.get("version")
        version = version if isinstance(version, str) else ""
        check_name("model name", model["name"], limits.model_name_bytes, "model_name_bytes")
        check_name("model version", version, limits.name_bytes, "name_bytes")
        entries.append(RepositoryEntry(model["name"], version, ModelState.UNKNOWN))
    return tuple(entries)


def lists_model(text: str, key: str, limits: MessageLimits) -> bool:
    """Return whether a server's metadata lists the model of this grps key, or cannot be read.

    The metadata is the server's own configuration, so unreadable metadata excludes no model.  The
    empty key of the default DAG can mean any model.
    """
    if not key:
        return True
    try:
        entries = read_models(text, limits)
    except GatewayError:
        return True
    return any(key in (entry.name, f"{entry.name}-{entry.version}") for entry in entries)


def read_model(text: str, name: str, limits: MessageLimits) -> ModelMetadata:
    """Return a model's metadata; that of a real server has no tensors.

    Args:
        text: YAML.
        name: The name of the requested model.
        limits: The limits of names, tensors and ranks.

    Raises:
        ModelNotFound: The text is empty.
        MalformedMessage: The text is not such YAML.
        TooLarge: A limit is exceeded.
    """
    if not text.strip():
        raise ModelNotFound(f"the server has no model {name!r}")
    found = _loaded(text, "model metadata")
    version = found.get("version")
    platform = found.get("inferer_type")
    batch = found.get("max_batch_size")
    return ModelMetadata(
        name=name,
        versions=(_name(version, limits),) if isinstance(version, str) and version else (),
        platform=_name(platform, limits) if isinstance(platform, str) else "",
        inputs=_tensors(found, "inputs", limits),
        outputs=_tensors(found, "outputs", limits),
        max_batch_size=_integer(batch, 0) if isinstance(batch, str) else None,
    )


def _entry(metadata: ModelMetadata, version: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": metadata.name}
    if version:
        entry["version"] = version
    if metadata.platform:
        entry["inferer_type"] = metadata.platform
    if metadata.max_batch_size is not None:
        entry["max_batch_size"] = metadata.max_batch_size
    entry["inputs"] = [_described(tensor) for tensor in metadata.inputs]
    entry["outputs"] = [_described(tensor) for tensor in metadata.outputs]
    return entry


def _described(tensor: TensorMetadata) -> dict[str, Any]:
    """Return a tensor in the form of grps clients, with its datatype before widening."""
    entry: dict[str, Any] = {"name": tensor.name}
    if tensor.datatype is not None:
        entry["dtype"] = BY_DATATYPE[widened_datatype(tensor.datatype)].name
        if tensor.datatype not in BY_DATATYPE:
            entry["datatype"] = tensor.datatype.value
    if tensor.shape is not None:
        entry["shape"] = list(tensor.shape)
    return entry


def _dumped(document: dict[str, Any]) -> str:
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _loaded(text: str, what: str) -> dict[str, Any]:
    if len(text) > _TEXT_BYTES:
        raise TooLarge(
            f"{what} has {len(text)} characters of YAML, at most {_TEXT_BYTES} are allowed",
            limit="json_bytes",
        )
    try:
        _check_plain(text, what)
        document = yaml.load(text, Loader=_Loader)  # noqa: S506  # makes text, lists, mappings only
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        # ValueError and TypeError: characters that YAML forbids, and keys that are lists.
        raise MalformedMessage(f"{what} is not YAML: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise MalformedMessage(f"{what} is not a YAML mapping")
    return document


def _check_plain(text: str, what: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise MalformedMessage(f"{what} has a YAML alias: aliases are not allowed")
        if isinstance(event, _OPENS):
            depth += 1
            if depth > _DEPTH:
                raise TooLarge(
                    f"{what} is nested more than {_DEPTH} levels deep", limit="json_depth"
                )
        elif isinstance(event, _CLOSES):
            depth -= 1


def _tensors(found: dict[str, Any], kind: str, limits: MessageLimits) -> tuple[TensorMetadata, ...]:
    listed = found.get(kind)
    if not isinstance(listed, list):
        return ()
    check_count(f"{kind} in model metadata", len(listed), limits.tensors, "tensors")
    return tuple([_tensor(entry, kind, limits) for entry in listed])


def _tensor(entry: Any, kind: str, limits: MessageLimits) -> TensorMetadata:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise MalformedMessage(f"model metadata has {kind} without a name")
    shape = entry.get("shape")
    dims = None
    if isinstance(shape, list):
        check_count(f"dimensions of {kind}", len(shape), limits.rank, "rank")
        dims = tuple([_integer(dim, -1) for dim in shape])
    return TensorMetadata(_name(entry["name"], limits), _datatype(entry), dims)


def _datatype(entry: dict[str, Any]) -> Datatype | None:
    datatype, dtype = entry.get("datatype"), entry.get("dtype")
    if isinstance(datatype, str) and datatype in _DATATYPES:
        return _DATATYPES[datatype]
    kind = BY_NAME.get(dtype) if isinstance(dtype, str) else None
    return None if kind is None else kind.datatype


def _integer(text: Any, least: int) -> int:
    digits = text.removeprefix("-") if isinstance(text, str) else ""
    if digits.isascii() and digits.isdigit() and len(digits) < _INTEGER_DIGITS:
        value = int(text)
        if value >= least:
            return value
    raise MalformedMessage(
        f"model metadata has {str(text)[:32]!r}: expected an integer of {least} or more"
    )


def _name(text: str, limits: MessageLimits) -> str:
    check_name("name in model metadata", text, limits.name_bytes, "name_bytes")
    return text


_DATATYPES: Final = {datatype.value: datatype for datatype in Datatype}
