"""What the implementations of the transports offer: `native` all of it, `reference` less.

This table is the only one. Validation of a configuration, the documentation and the tests read it.
"""

from dataclasses import dataclass
from typing import Final, Literal

Side = Literal["http server", "http client", "grpc server", "grpc client"]


@dataclass(frozen=True, slots=True)
class Limitation:
    """What aiohttp or grpcio do not offer on their public interfaces.

    Attributes:
        name: The name of the capability, which tests need.
        side: Where it is missing.
        effect: What happens instead: a sentence.
        keys: Keys of a listener or an upstream that have no effect, such as "limits.connections".
    """

    name: str
    side: Side
    effect: str
    keys: tuple[str, ...] = ()


REFERENCE_LIMITATIONS: Final = (
    Limitation(
        "half_close",
        "http server",
        "A client that closes its side before the response gets none.",
    ),
    Limitation(
        "readable_faults",
        "http server",
        "aiohttp refuses heads that are malformed or too large by itself, with status 400, its "
        "name and no metric. The size of a whole head is checked once it has arrived.",
    ),
    Limitation(
        "broken_bodies",
        "http server",
        "A chunked body with a broken framing ends at `idle_timeout`, with status 408.",
    ),
    Limitation(
        "pipelining",
        "http server",
        "aiohttp has a queue of its own for pipelined requests.",
        ("limits.pipelined_requests",),
    ),
    Limitation(
        "cut_through",
        "http server",
        "Bodies are received completely before they are passed on.",
        ("limits.cut_through_bytes",),
    ),
    Limitation(
        "turns",
        "http server",
        "aiohttp reads many chunks of a byte at one go, while other clients wait.",
    ),
    Limitation(
        "kept_connections",
        "http client",
        "Each request has a connection of its own: aiohttp would take what a server sends late for "
        "the response to the next request.",
        ("limits.keepalive",),
    ),
    Limitation(
        "single_attempts",
        "http client",
        "aiohttp sends an idempotent request once more if its connection ends without a response.",
    ),
    Limitation(
        "framing_errors",
        "http client",
        "A response with a broken framing counts as a lost connection. Its chunks are not counted.",
    ),
    Limitation(
        "resets",
        "http client",
        "Cancelled requests end with a plain close of the connection.",
    ),
    Limitation(
        "own_look_up",
        "http client",
        "Names are looked up on the threads of the event loop.",
    ),
    Limitation(
        "url_hints",
        "http client",
        "Errors of a wrong port do not tell the right URL.",
    ),
    Limitation(
        "any_path",
        "grpc server",
        "A path that is not UTF-8 ends all calls of the listener; it starts again at once.",
    ),
    Limitation(
        "connections",
        "grpc server",
        "Connections are not counted.",
        ("limits.connections", "limits.connections_per_address"),
    ),
    Limitation(
        "rates",
        "grpc server",
        "A message has `body_timeout` to arrive, and `idle_timeout` to be read. Memory counts it "
        "once it has arrived.",
        ("limits.header_timeout", "limits.min_rate_bytes_s"),
    ),
    Limitation(
        "http2_frames",
        "grpc server",
        "HTTP/2 is that of grpcio: it refuses padded frames, and has no budget for abusive ones.",
    ),
    Limitation(
        "inflated_elements",
        "grpc server",
        "The elements of a message that grpcio decompresses are not counted, its bytes are.",
        ("limits.decompressed_elements", "limits.decompressed_ratio"),
    ),
    Limitation(
        "read_ahead",
        "grpc server",
        "A stream keeps its place until its client has read it.",
    ),
    Limitation(
        "withheld_calls",
        "grpc client",
        "Calls whose client has left are cancelled, which ends Triton before 2.59. "
        "`cancellation: withhold` is refused.",
    ),
    Limitation(
        "channels",
        "grpc client",
        "There is one connection without a greatest age. Calls above the streams that the server "
        "allows wait unseen.",
        ("limits.connections", "limits.resolve_floor"),
    ),
    Limitation(
        "response_frames",
        "grpc client",
        "A response may have any number of frames.",
    ),
    Limitation(
        "silence",
        "grpc client",
        "A connection that was lost without a word is found by the kernel alone.",
    ),
    Limitation(
        "error_hints",
        "grpc client",
        "Responses that break gRPC count as errors of the server. Errors of a wrong port tell "
        "less.",
    ),
)
"""The limitations of `reference`, in the order of the documentation."""


def limitations(implementation: str, *sides: Side) -> list[Limitation]:
    """Return what an implementation does not offer on *sides*."""
    if implementation == "native":
        return []
    return [each for each in REFERENCE_LIMITATIONS if each.side in sides]
