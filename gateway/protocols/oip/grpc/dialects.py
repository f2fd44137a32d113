"""Differences between servers of Open Inference over gRPC, and checks of requests to them.

Source: docs/protocols/open-inference.md, "17. Dialects of upstream servers".
"""

from dataclasses import dataclass
from typing import Any

from gateway.ir.calls import Call, InferRequest, words_of
from gateway.ir.context import JsonParameter, ModelRef, Parameters
from gateway.ir.errors import InvalidRequest, SequenceIdTooLarge, Unsupported
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.oip.dialects import MOST_LENIENT
from gateway.protocols.oip.extension_policy import check_extended
from gateway.protocols.oip.parameters import INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcDialect:
    """The features of a kind of server.

    Attributes:
        reads_as_numpy: A shape may have one -1, and no key of a parameter is reserved.
        reads_any_contents: Elements may be in the contents field of another datatype.
        has_doubles: double_param and uint64_param; a server without them ignores the value.
        has_versions: Models have versions; KServe ignores the field over gRPC.
        has_whole_versions: It reads a version as the whole number that it begins with.
        can_select: It returns the requested outputs only; KServe returns all of them.
        has_extensions: It has Triton's extensions: configuration, statistics and the like.
        has_control: Its models can be loaded and unloaded.
        has_nonfinite_words: Over HTTP it writes NaN and infinities as words.
        has_null_infinities: Over HTTP it writes infinities as `null`.
        has_half_in_json: Over HTTP it writes FP16 as numbers.
        has_name_first: Its requests to load and unload have the model's name in field 1.
        needs_id: It fails, or creates an id, when a request has none.
        has_streams: It has ModelStreamInfer.
        has_plain_streams: The messages of its streams are bare responses, without the envelope for
            errors and the mark of the last one.
        echoes_id: The id of a response is that of its request; models of KServe choose ids.
        keeps_names: It keeps metrics for each name of a model, also for unknown ones.
        request_bytes: Largest request that it accepts by default; None for no limit.
        strings: How many times `json_strings` BYTES elements it reads in time; None for no limit.
    """

    name: str
    reads_as_numpy: bool = False
    reads_any_contents: bool = False
    has_doubles: bool = False
    has_bf16: bool = False
    has_versions: bool = True
    has_whole_versions: bool = False
    can_select: bool = True
    needs_id: bool = False
    has_index: bool = False
    has_extensions: bool = False
    has_streams: bool = True
    has_plain_streams: bool = False
    has_control: bool = False
    has_name_first: bool = False
    echoes_id: bool = True
    keeps_names: bool = False
    request_bytes: int | None = None
    strings: float | None = None
    has_nonfinite_words: bool = False
    has_null_infinities: bool = False
    has_half_in_json: bool = False


DIALECTS: dict[str, GrpcDialect] = {
    dialect.name: dialect
    for dialect in (
        GrpcDialect(
            name="triton",
            has_doubles=True,
            has_bf16=True,
            has_whole_versions=True,
            has_index=True,
            has_extensions=True,
            has_control=True,
            has_nonfinite_words=True,
        ),
        GrpcDialect(
            name="mlserver",
            reads_as_numpy=True,
            reads_any_contents=True,
            has_index=True,
            has_plain_streams=True,
            has_null_infinities=True,
            has_half_in_json=True,
            has_control=True,
            keeps_names=True,
            request_bytes=4 << 20,
            strings=2.5,
        ),
        GrpcDialect(
            name="kserve",
            reads_as_numpy=True,
            has_null_infinities=True,
            has_versions=False,
            can_select=False,
            needs_id=True,
            has_streams=False,
            has_control=True,
            has_name_first=True,
            echoes_id=False,
            request_bytes=8 << 20,
        ),
        GrpcDialect(name="ovms"),
        GrpcDialect(
            name="gateway",
            has_doubles=True,
            has_bf16=True,
            has_index=True,
            has_extensions=True,
            has_control=True,
        ),
    )
}

READERS = DIALECTS | {
    MOST_LENIENT: GrpcDialect(name=MOST_LENIENT, reads_as_numpy=True, reads_any_contents=True)
}
"""How requests are read, by the dialect of their server."""

# The only key for which Triton accepts uint64_param.
_UNSIGNED = "priority"
_SEQUENCE = "sequence_id"


def check_infer(dialect: GrpcDialect, request: InferRequest, parameters: Parameters) -> None:
    """Refuse a request that a server of *dialect* would change silently.

    Args:
        dialect: The server's.
        request: The inference.
        parameters: Of the request, including the reserved ones.

    Raises:
        Unsupported: The dialect cannot carry it.
    """
    if parameters:
        _check_parameters(dialect, "request", parameters)
    for tensor in request.inputs:
        if not dialect.has_bf16 and tensor.datatype is Datatype.BF16:
            raise Unsupported(
                f"input {tensor.name!r} is BF16, which the dialect {dialect.name!r} does not have",
                model=request.model,
            )
        if type(tensor.data) is SharedMemoryData:
            check_extended(f"input {tensor.name!r}", None, dialect)
        if tensor.parameters:
            _check_parameters(dialect, f"input {tensor.name!r}", tensor.parameters)
    for output in request.outputs:
        if output.classes or output.shared is not None:
            check_extended(f"output {output.name!r}", output, dialect)
        if output.parameters:
            _check_parameters(dialect, f"output {output.name!r}", output.parameters)


def _check_parameters(dialect: GrpcDialect, place: str, parameters: Parameters) -> None:
    for key, value in parameters.items():
        if type(value) is JsonParameter:
            raise Unsupported(
                f"parameter {key!r} of the {place} is a list or an object, which only JSON over "
                "HTTP carries: use the HTTP port of the server"
            )
        if isinstance(value, float) and not dialect.has_doubles:
            raise Unsupported(
                f"parameter {key!r} of the {place} is {value!r}: "
                f"the dialect {dialect.name!r} has no double_param and would ignore it"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value <= INT64_MAX:
            continue
        if not (dialect.has_doubles and key == _UNSIGNED):
            kind = (
                SequenceIdTooLarge if dialect.has_extensions and key == _SEQUENCE else Unsupported
            )
            raise kind(
                f"parameter {key!r} of the {place} is {value}: the dialect {dialect.name!r} "
                f"accepts at most {INT64_MAX}"
            )


def required_model(call: Call[Any]) -> ModelRef:
    """Return the model of a call to an upstream.

    Raises:
        InvalidRequest: The call has none.
    """
    if call.model is None:
        raise InvalidRequest(f"{words_of(call)} names no model: Open Inference needs one")
    return call.model
