"""The rejected cells of the matrix, with the error texts; all others arrive bit by bit.

A cell is a client's form, an upstream's way, a datatype and the traits of its values.  The first
rule that a cell meets decides the client's error.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from gateway.ir.errors import ErrorCode
from gateway.ir.tensors.datatypes import Datatype
from tests.matrix.cases import FILLED, HUGE, INFINITE, NAN, NOT_TEXT, Case

HALVES = frozenset({Datatype.FP16, Datatype.BF16})
BF16 = frozenset({Datatype.BF16})
FP16 = frozenset({Datatype.FP16})

INVALID, UNSUPPORTED = ErrorCode.INVALID_ARGUMENT, ErrorCode.UNSUPPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One rule.

    Attributes:
        clients: Beginnings of the names of clients it holds for.
        upstreams: Beginnings of the names of upstreams' ways.
        other_than: Beginnings of the names of ways it does not hold for.
        datatypes: None for all.
        traits: Of which the values have one; None for any values.
        code: What the client gets.
        text: A pattern in the text it gets.
    """

    clients: tuple[str, ...] = ("",)
    upstreams: tuple[str, ...] = ("",)
    other_than: tuple[str, ...] = ()
    datatypes: frozenset[Datatype] | None = None
    traits: frozenset[str] | None = None
    code: ErrorCode
    text: str

    def meets(self, client: str, upstream: str, case: Case) -> bool:
        """Return whether the rule holds for a cell."""
        return (
            client.startswith(self.clients)
            and upstream.startswith(self.upstreams)
            and not upstream.startswith(self.other_than)
            and (self.datatypes is None or case.datatype in self.datatypes)
            and (self.traits is None or bool(self.traits & case.traits))
        )


_JSON = ("oip.http-json",)
_JSON_OUT = ("oip.http-json", "oip.http-binary-to-json")
_TYPED = ("oip.grpc-typed",)
_TRITON = ("oip.http-triton", "oip.grpc-triton")
_KSERVE = ("oip.http-kserve", "oip.grpc-kserve")
_NULLS = ("oip.grpc-mlserver", *_KSERVE)
_READ_WORDS = (*_TRITON, *_KSERVE)

_NOT_IN_GRPS = frozenset(
    {Datatype.BOOL, Datatype.UINT16, Datatype.UINT32, Datatype.UINT64, Datatype.BF16}
)

_WIDENED = tuple(f"grps.{carrier}-widened" for carrier in ("http", "grpc", "brpc"))

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        clients=_WIDENED,
        traits=frozenset({HUGE}),
        code=UNSUPPORTED,
        text=r"'INPUT0' has \d+ at index \d, grps has no integer over 9223372036854775807",
    ),
    Refusal(
        clients=("grps.grpc-plain",),
        datatypes=_NOT_IN_GRPS,
        code=UNSUPPORTED,
        text="'INPUT0' is .*, which grps does not have; the upstream's option 'widen'",
    ),
    Refusal(
        clients=("grps",),
        traits=frozenset({NOT_TEXT}),
        code=UNSUPPORTED,
        text="'INPUT0' has bytes that are not UTF-8 at index 0",
    ),
    Refusal(
        clients=("trtis",),
        datatypes=BF16,
        code=UNSUPPORTED,
        text="'INPUT0' is BF16, which TensorRT v1 cannot represent",
    ),
    # Values that a client's own form cannot represent.
    Refusal(
        clients=_JSON,
        datatypes=frozenset({Datatype.BYTES}),
        traits=frozenset({NOT_TEXT}),
        code=INVALID,
        text="the request is not JSON",
    ),
    Refusal(
        clients=_JSON,
        other_than=_READ_WORDS,
        datatypes=frozenset({Datatype.FP16, Datatype.FP32, Datatype.FP64}),
        traits=frozenset({NAN, INFINITE}),
        code=INVALID,
        text="the request is not JSON",
    ),
    Refusal(clients=_JSON, datatypes=BF16, code=INVALID, text="JSON cannot represent"),
    Refusal(
        clients=_JSON,
        other_than=("oip.grpc-mlserver",),
        datatypes=FP16,
        code=INVALID,
        text="JSON cannot represent",
    ),
    Refusal(
        clients=_TYPED,
        datatypes=HALVES,
        traits=frozenset({FILLED}),
        code=INVALID,
        text="expected raw contents",
    ),
    # Values that an upstream cannot represent.
    Refusal(
        upstreams=("trtis",),
        datatypes=BF16,
        code=UNSUPPORTED,
        text="'INPUT0' is BF16, which TensorRT v1 cannot represent",
    ),
    Refusal(
        upstreams=("oip.http-mlserver",),
        datatypes=BF16,
        code=UNSUPPORTED,
        text="mlserver accepts no binary tensors over HTTP, use its gRPC port",
    ),
    # MLServer reads `null` and texts as numbers; our own listener, which replaces it here, does not.
    Refusal(
        upstreams=("oip.http-mlserver",),
        datatypes=frozenset({Datatype.FP32, Datatype.FP64}),
        traits=frozenset({NAN, INFINITE}),
        code=INVALID,
        text=r"input 'INPUT0' has (null|'Infinity') at index \d: expected a number",
    ),
    Refusal(
        upstreams=("oip.http-mlserver", "oip.http-kserve"),
        traits=frozenset({NOT_TEXT}),
        code=UNSUPPORTED,
        text="'INPUT0' has bytes that are not UTF-8 at index 0.*use its gRPC port",
    ),
    Refusal(
        upstreams=_WIDENED,
        traits=frozenset({HUGE}),
        code=UNSUPPORTED,
        text=r"'INPUT0' has \d+ at index \d, grps has no integer over 9223372036854775807",
    ),
    Refusal(
        # A client of grps has widened them already.
        clients=("oip", "graphpipe", "tfs", "trtis"),
        upstreams=("grps.grpc-plain",),
        datatypes=_NOT_IN_GRPS,
        code=UNSUPPORTED,
        text="'INPUT0' is .*, which grps does not have; the upstream's option 'widen'",
    ),
    Refusal(
        upstreams=("grps",),
        traits=frozenset({NOT_TEXT}),
        code=UNSUPPORTED,
        text="'INPUT0' has bytes that are not UTF-8 at index 0.*carries text only",
    ),
    # MLServer accepts FP16 as JSON numbers; our own listener does not.
    Refusal(
        upstreams=("oip.http-mlserver",),
        datatypes=FP16,
        code=INVALID,
        text="JSON cannot represent",
    ),
    Refusal(
        upstreams=("oip.grpc-mlserver", "oip.grpc-kserve", "oip.grpc-ovms"),
        datatypes=BF16,
        code=UNSUPPORTED,
        text="'INPUT0' is BF16, which the dialect '(mlserver|kserve|ovms)' does not have",
    ),
    # Values that the requested form of the response cannot represent.
    Refusal(
        clients=_JSON_OUT,
        other_than=("oip.grpc-mlserver",),
        datatypes=HALVES,
        code=UNSUPPORTED,
        text="'OUTPUT0' is .*16, which JSON cannot represent: request it as binary",
    ),
    # Triton writes infinities as words, MLServer and KServe as null, and so does the gateway then.
    Refusal(
        clients=_JSON_OUT,
        other_than=(*_TRITON, *_NULLS),
        traits=frozenset({INFINITE}),
        code=UNSUPPORTED,
        text="'OUTPUT0' has inf at index 0.*'binary_data'",
    ),
    Refusal(
        clients=_JSON_OUT,
        traits=frozenset({NOT_TEXT}),
        code=UNSUPPORTED,
        text="'OUTPUT0' has bytes that are not UTF-8 at index 0.*binary_data",
    ),
)


def has_null_infinities(client: str, upstream: str) -> bool:
    """Return whether infinities reach a client as `null`, which is NaN."""
    return client.startswith(_JSON_OUT) and upstream.startswith(_NULLS)


@functools.cache
def refusal(client: str, upstream: str, case: Case) -> Refusal | None:
    """Return the rule for a cell, None where everything arrives."""
    return next((rule for rule in REFUSALS if rule.meets(client, upstream, case)), None)
