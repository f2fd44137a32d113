"""ServerStatus and ModelConfig, which a v1 client reads before its first inference.

Writes them from metadata of any server, and reads metadata from those of a real one.  Shapes of
clients never contain the batch axis; the gateway's metadata does.

Source: docs/protocols/tensorrt-v1.md, "15. Server status and model configuration".
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from google.protobuf.json_format import ParseDict, ParseError

from gateway.ir.errors import InvalidTensor, MalformedMessage, ModelNotFound, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name, check_shape
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    ModelStatus,
    RepositoryEntry,
    ServerMetadata,
    ServerStatus,
    TensorMetadata,
)
from gateway.ir.redaction import redact
from gateway.ir.tensors.tensor import Shape
from gateway.protocols.trtis.datatypes import DATATYPES, NUMBERS, check_carried
from gateway.protocols.trtis.infer_response import version_number
from gateway.protocols.trtis.options import TrtisOptions
from gateway.protocols.trtis.statistics import write_counters
from gateway.schema import tensorrt_v1_pb2 as pb

_STATES: Mapping[ModelState, pb.ModelReadyState] = {
    ModelState.UNKNOWN: pb.MODEL_UNKNOWN,
    ModelState.READY: pb.MODEL_READY,
    ModelState.UNAVAILABLE: pb.MODEL_UNAVAILABLE,
    ModelState.LOADING: pb.MODEL_LOADING,
    ModelState.UNLOADING: pb.MODEL_UNLOADING,
}
_MODEL_STATES: Mapping[int, ModelState] = {number: state for state, number in _STATES.items()}
_PLATFORM = "custom"
_LISTED = 10_000
_MOST_NS = (1 << 64) - 1


def write_status(
    status: ServerStatus, options: TrtisOptions, *, only: bool = False
) -> pb.ServerStatus:
    """Write a server's status.

    Models that v1 cannot describe (BF16, tensors of unknown datatype or shape, numbers that do not
    fit its fields) are left out, unless the request is about one model only.

    Args:
        status: The server and its models.
        options: With the server's id and version.
        only: The request is about one model.

    Raises:
        Unsupported: The one model cannot be described.
    """
    found = pb.ServerStatus(
        id=options.server_id,
        version=options.server_version,
        uptime_ns=min(int(max(status.uptime_s, 0.0) * 1e9), _MOST_NS),
        ready_state=pb.SERVER_READY if status.is_ready else pb.SERVER_INITIALIZING,
    )
    for model in status.models:
        try:
            written = _write_model(model, options.max_batch_size)
        except Unsupported:
            if only:
                raise
            continue
        found.model_status[model.metadata.name].CopyFrom(written)
    return found


def _write_model(model: ModelStatus, cap: int) -> pb.ModelStatus:
    try:
        return _written_model(model, cap)
    except ValueError as error:  # of the upstream: a number over 64 bits, a lone surrogate
        name = model.metadata.name
        raise Unsupported(f"model {name!r} cannot be described in TensorRT v1: {error}") from error


def _written_model(model: ModelStatus, cap: int) -> pb.ModelStatus:
    metadata = model.metadata
    written = pb.ModelStatus(config=write_config(metadata, cap))
    states = {entry.version: entry for entry in model.entries}
    counted = {one.version: one for one in model.statistics}
    # The metadata names what is loaded, the index also what was unloaded.
    unloaded = [one.version for one in model.entries if one.state is ModelState.UNAVAILABLE]
    for version in dict.fromkeys((*(metadata.versions or states or ("",)), *unloaded)):
        entry = states.get(version)
        # A model with metadata exists, even where the index differs.
        state = ModelState.READY if entry is None else entry.state
        number = version_number(version)
        if number in written.version_status:
            continue  # of several versions that are not numbers, the first is 1
        version_status = written.version_status[number]
        version_status.ready_state = _STATES[state]
        if entry is not None and entry.reason:
            version_status.ready_state_reason.message = entry.reason
        if version in counted:
            write_counters(version_status, counted[version])
    return written


def write_config(metadata: ModelMetadata, cap: int) -> pb.ModelConfig:
    """Write a model's configuration.

    Args:
        metadata: Its signature.
        cap: The largest batch of a model that batches without a declared limit.

    Raises:
        Unsupported: A tensor has no form in v1.
    """
    batches = metadata.supports_batching
    config = _own_config(metadata)
    inputs = {entry.name: entry for entry in config.input}
    outputs = {entry.name: entry for entry in config.output}
    config.ClearField("input")
    config.ClearField("output")
    config.name = metadata.name
    config.platform = metadata.platform or _PLATFORM
    config.max_batch_size = (metadata.max_batch_size or cap) if batches else 0
    if metadata.stateful and not config.HasField("sequence_batching"):
        config.sequence_batching.SetInParent()
    for tensor in metadata.inputs:
        entry = config.input.add()
        own = inputs.get(tensor.name)
        if own is not None:
            entry.CopyFrom(own)
        _write_tensor("input", entry, tensor, batches=batches)
    for tensor in metadata.outputs:
        output = config.output.add()
        own_output = outputs.get(tensor.name)
        if own_output is not None:
            output.CopyFrom(own_output)
        _write_tensor("output", output, tensor, batches=batches)
    return config


def _own_config(metadata: ModelMetadata) -> pb.ModelConfig:
    """Return the server's own configuration, as far as v1 has its fields; else an empty one."""
    config = pb.ModelConfig()
    if metadata.configuration is not None:
        with suppress(ParseError):  # a number that v1 has no room for
            ParseDict(dict(metadata.configuration.document), config, ignore_unknown_fields=True)
            return config
    return pb.ModelConfig()


def _write_tensor(
    kind: str, entry: pb.ModelInput | pb.ModelOutput, tensor: TensorMetadata, *, batches: bool
) -> None:
    name, datatype, shape = tensor.name, tensor.datatype, tensor.shape
    if datatype is None or shape is None or (batches and not shape):
        raise Unsupported(
            f"{kind} {name!r} has no datatype or shape in the model's metadata: a TensorRT v1 "
            "client needs both"
        )
    check_carried(kind, name, datatype)
    entry.name = name
    entry.data_type = NUMBERS[datatype]
    if entry.dims and entry.HasField("reshape"):  # the server's own: the shape that clients send
        return
    dims = shape[1:] if batches else shape
    del entry.dims[:]
    # A client takes no dims for no elements: one scalar is dims [1], which the model sees as [].
    entry.dims.extend(dims or (1,))
    if not dims:
        entry.reshape.SetInParent()


def read_server(status: pb.ServerStatus, limits: MessageLimits) -> ServerMetadata:
    """Read an upstream's id and version.

    Raises:
        InvalidRequest, TooLarge: A name is not allowed.
    """
    for text in (status.id, status.version):
        check_name("server status", text, limits.name_bytes, "name_bytes")
    return ServerMetadata(status.id, status.version)


def read_entries(status: pb.ServerStatus, limits: MessageLimits) -> tuple[RepositoryEntry, ...]:
    """Read an upstream's models with their versions.

    Raises:
        InvalidRequest, TooLarge: A name is not allowed, or there are too many.
    """
    check_count("models", len(status.model_status), _LISTED, "models")
    entries = []
    for name, model in sorted(status.model_status.items()):
        check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
        versions = sorted(model.version_status.items()) or [(0, pb.ModelVersionStatus())]
        entries += [_entry(name, number, version, limits) for number, version in versions]
    return tuple(entries)


def _entry(
    name: str, number: int, version: pb.ModelVersionStatus, limits: MessageLimits
) -> RepositoryEntry:
    return RepositoryEntry(
        name,
        str(number) if number > 0 else "",
        _MODEL_STATES.get(version.ready_state, ModelState.UNKNOWN),
        redact(version.ready_state_reason.message[: limits.error_text_bytes]),
    )


def model_of(status: pb.ServerStatus, name: str) -> pb.ModelStatus:
    """Return the status of one model.

    Raises:
        ModelNotFound: The status lacks it.
    """
    if name not in status.model_status:
        raise ModelNotFound(f"model {name!r} is not in the status of the server")
    return status.model_status[name]


def is_ready(model: pb.ModelStatus, version: str) -> bool:
    """Return whether a version of a model is ready; with "", whether any is."""
    ready = {
        str(number)
        for number, version_status in model.version_status.items()
        if version_status.ready_state == pb.MODEL_READY
    }
    return version in ready if version else bool(ready)


def read_model(name: str, model: pb.ModelStatus, limits: MessageLimits) -> ModelMetadata:
    """Read a model's metadata from its status.

    Shapes are those of requests; a reshape inside the server is ignored.

    Raises:
        MalformedMessage, InvalidTensor, InvalidRequest, TooLarge: It cannot be used.
    """
    config = model.config
    batches = config.max_batch_size > 0
    if config.max_batch_size < 0:
        raise MalformedMessage(f"model {name!r} has max_batch_size {config.max_batch_size}")
    check_name("platform", config.platform, limits.name_bytes, "name_bytes")
    check_count("versions", len(model.version_status), _LISTED, "versions")
    return ModelMetadata(
        name=name,
        versions=tuple([str(number) for number in sorted(model.version_status) if number > 0]),
        platform=config.platform,
        inputs=_read_tensors("inputs", config.input, limits, batches=batches),
        outputs=_read_tensors("outputs", config.output, limits, batches=batches),
        max_batch_size=config.max_batch_size,
        stateful=config.HasField("sequence_batching"),
    )


def _read_tensors(
    kind: str,
    entries: Iterable[pb.ModelInput | pb.ModelOutput],
    limits: MessageLimits,
    *,
    batches: bool,
) -> tuple[TensorMetadata, ...]:
    found = list(entries)
    check_count(kind, len(found), limits.tensors, "tensors")
    tensors = []
    for entry in found:
        check_name("tensor name", entry.name, limits.name_bytes, "name_bytes")
        dims: Shape = tuple(entry.dims)
        if any(dim < -1 for dim in dims):
            raise InvalidTensor(
                f"tensor {entry.name!r} has dims {list(dims)}: expected numbers of -1 or more"
            )
        check_shape(entry.name, None, tuple([max(dim, 0) for dim in dims]), limits)
        shape = (-1, *dims) if batches else dims
        tensors.append(TensorMetadata(entry.name, DATATYPES.get(entry.data_type), shape))
    return tuple(tensors)
