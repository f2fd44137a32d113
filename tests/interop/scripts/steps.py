"""What a check is made of: the steps a client takes, and what it should then see.

The table of checks is `checks.py`; the scripts carry it out; `tests/interop/judge.py` compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.interop.scripts.tensors import Tensor

Transport = Literal["http", "grpc"]
BOTH: tuple[Transport, ...] = ("http", "grpc")


@dataclass(frozen=True)
class Wanted:
    """An output to ask for; *classes* > 0 asks for the best so many classes instead of values."""

    name: str
    classes: int = 0


@dataclass(frozen=True)
class Infer:
    """One inference.

    Attributes:
        model: Its name.
        inputs: What to send.
        outputs: What to ask for; None asks for nothing in particular, which means all of it.
        binary_in: HTTP: send binary data rather than JSON.
        binary_out: HTTP: ask for binary data rather than JSON, where *outputs* are named.
        request_compression: `gzip` or `deflate`; the one compression of a gRPC call.
        response_compression: HTTP only.
        client_timeout_s: How long the client waits.
        options: Further arguments of tritonclient's `infer`, by its names.
    """

    model: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Wanted, ...] | None = None
    binary_in: bool = True
    binary_out: bool = True
    request_compression: str | None = None
    response_compression: str | None = None
    client_timeout_s: float = 20.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """A call that is no inference: a method of tritonclient's, by name, and its arguments.

    *only* names the members that are kept of the answer, at every depth, where others vary.
    """

    method: str
    arguments: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outputs:
    """The inference succeeds with these outputs, in this order, and perhaps this id."""

    tensors: tuple[Tensor, ...]
    request_id: str | None = None


@dataclass(frozen=True)
class Failure:
    """The client raises, and `TYPE: MESSAGE` of that contains *text*."""

    text: str


@dataclass(frozen=True)
class Answer:
    """The query answers this, or a mapping with at least these members."""

    value: object


Expected = Outputs | Failure | Answer
Manner = Literal["in_turn", "at_once", "stream"]


@dataclass(frozen=True)
class Check:
    """Something a client does, and what it sees on a server that keeps to the protocol.

    Attributes:
        name: Unique.
        steps: What the client does.
        expected: What it sees: one for each step, or for a stream, for each response.
        transports: Where it can be done.
        manner: Steps one after another, all at once (tritonclient's `async_infer`), or as one
            stream of requests (gRPC).
        http_expected: What it sees over HTTP, where that differs.
    """

    name: str
    steps: tuple[Infer | Query, ...]
    expected: tuple[Expected, ...]
    transports: tuple[Transport, ...] = BOTH
    manner: Manner = "in_turn"
    http_expected: tuple[Expected, ...] | None = None

    def expected_over(self, transport: Transport) -> tuple[Expected, ...]:
        """Return what a client of *transport* sees."""
        if transport == "http" and self.http_expected is not None:
            return self.http_expected
        return self.expected


END_OF_REQUEST = Outputs(())
"""The empty final response of a stream, which a client sees that has asked for it."""
