"""Known weaknesses of model servers: what a request can do to them, and what the gateway does.

The table is the source of docs/protection.md (`make regenerate`), of the log lines about each
upstream, and of the default of `cancellation`. The code of the defences is in other modules.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.ir.metadata import ServerMetadata

_VERSION = re.compile(r"(\d+)\.(\d+)")

TRITON, MLSERVER, KSERVE = "triton", "mlserver", "kserve"
GRPC, HTTP = "grpc", "http"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """One weakness.

    Attributes:
        name: Name of the row, and of its test in tests/interop.
        server: `name` in the server's metadata, in lower case.
        source: Issue or CVE.
        repaired: The first version without the weakness; None if there is none.
        request: The request of a client that triggers it.
        effect: The effect on the server.
        defence: The defence of the gateway.
        option: Configuration key or option that changes the defence; "" for none.
        carrier: The carrier to the server over which it exists; "" for all.
    """

    name: str
    server: str
    source: str
    repaired: tuple[int, int] | None
    request: str
    effect: str
    defence: str
    option: str = ""
    carrier: str = ""

    def affects(self, server: ServerMetadata) -> bool:
        """Return whether a server has the weakness; an unreadable version counts as old."""
        if server.name.lower() != self.server:
            return False
        found = _VERSION.match(server.version)
        if self.repaired is None or found is None:
            return True
        return (int(found[1]), int(found[2])) < self.repaired

    def line(self, server: ServerMetadata, defence: str = "") -> str:
        """Return one line for a server: its version, the weakness and the defence.

        Args:
            server: It has the weakness.
            defence: What the gateway does, if not that of the table.
        """
        repaired = ""
        if self.repaired is not None:
            repaired = f", repaired in {self.repaired[0]}.{self.repaired[1]}.0"
        return (
            f"{server.name} {server.version}: {self.request}: {self.effect} "
            f"({self.source}{repaired}); {defence or self.defence}"
        )


CANCELLED_CALLS: Final = Weakness(
    name="cancelled_calls",
    server=TRITON,
    source="server 7368, 8034",
    repaired=(2, 59),
    request="gRPC calls that are cancelled, or whose deadline passes",
    effect="the process ends after 60 to 30,000 of them",
    defence="cancellation is withheld: the call ends by itself, and its reply is dropped",
    option="`cancellation` of an upstream",
    carrier=GRPC,
)

EMPTY_CLASSES: Final = Weakness(
    name="classes_of_nothing",
    server=TRITON,
    source="measured",
    repaired=None,
    request="classes of an output without elements, over HTTP",
    effect="the process ends",
    defence="the gateway computes the classes of outputs whose shape is variable",
    carrier=HTTP,
)

WEAKNESSES: Final[tuple[Weakness, ...]] = (
    Weakness(
        name="nested_json",
        server=TRITON,
        source="server 8172",
        repaired=(2, 58),
        request="JSON nested 300,000 levels deep",
        effect="the process ends",
        defence="at most 64 levels are read",
        option="`json_depth`",
    ),
    Weakness(
        name="many_chunks",
        server=TRITON,
        source="CVE-2025-23310, server 8305",
        repaired=(2, 60),
        request="a body in 1,000,000 chunks",
        effect="the process ends",
        defence="at most 65,536 chunks are read, and the body is forwarded without them",
        option="`body_chunks`",
    ),
    Weakness(
        name="infinite_quality",
        server=TRITON,
        source="server 8637",
        repaired=(2, 66),
        request="`Accept-Encoding: gzip;q=1e400`",
        effect="the process ends",
        defence="the header is not forwarded",
    ),
    Weakness(
        name="huge_shape",
        server=TRITON,
        source="server 8174, 8182, 8676",
        repaired=None,
        request="shapes of 2^40 or 2^63-1 elements",
        effect="the process ends",
        defence="shapes are multiplied without overflow, and compared with the data",
        option="`elements`, `dim`",
    ),
    Weakness(
        name="classes_of_text",
        server=TRITON,
        source="server 8267",
        repaired=(2, 60),
        request="classes of an output of datatype BYTES",
        effect="the process ends",
        defence="the datatype is looked up, and classes of BYTES and BOOL are refused",
        option="`classes` limits their number",
    ),
    EMPTY_CLASSES,
    Weakness(
        name="text_sequence_id",
        server=TRITON,
        source="core 425",
        repaired=None,
        request="a sequence id that is text, for a model with numbers",
        effect="the process ends or hangs",
        defence="the type is looked up in the model's configuration",
        option="`sequence_ids` of a route, if the server shows no configuration",
    ),
    Weakness(
        name="number_as_text_sequence_id",
        server=TRITON,
        source="core 425",
        repaired=None,
        request="a sequence id that is a number, for a model with text",
        effect="the model hangs",
        defence="the type is looked up in the model's configuration",
    ),
    CANCELLED_CALLS,
    Weakness(
        name="names_of_segments",
        server=TRITON,
        source="CVE-2025-23320, python_backend 403",
        repaired=None,
        request="an input that is too large for the segment of the python backend",
        effect="the error names the segment, and a client that has the name can overwrite it",
        defence="names of segments are removed from errors; the log has the complete text",
    ),
    Weakness(
        name="configuration_is_code",
        server=TRITON,
        source="CVE-2025-23316",
        repaired=None,
        request="a load with a `config`",
        effect="a command of the client runs on the server's machine",
        defence="a `config` is refused, or limited to a few fields",
        option="`model_config`",
    ),
    Weakness(
        name="shared_memory_regions",
        server=TRITON,
        source="CVE-2025-23333, server 8170",
        repaired=(2, 61),
        request="a region of the server's own segment, or one with an offset",
        effect="a client reads or writes the server's memory, or the process ends",
        defence="keys are allowed by name, segments are measured, offsets moved to the tensors",
        option="`shared_memory`",
    ),
    Weakness(
        name="wide_text",
        server=MLSERVER,
        source="numpy",
        repaired=None,
        request="1,000 texts of which one has 400,000 characters, over HTTP",
        effect="1.5 GiB of memory, and nobody else is answered for seconds",
        defence="count times longest times 4 is limited",
        option="`bytes_rectangle` of an upstream",
        carrier=HTTP,
    ),
    Weakness(
        name="unknown_names",
        server=MLSERVER,
        source="measured",
        repaired=None,
        request="inferences for models with a new name each",
        effect="it keeps metrics for each name for ever",
        defence="a model gets inferences when the server has shown its metadata",
    ),
    Weakness(
        name="numbers_as_json",
        server=MLSERVER,
        source="measured",
        repaired=None,
        request="60 MB of binary tensors, which MLServer takes as JSON only over HTTP",
        effect="150 MB of JSON, and nobody else is answered for seconds",
        defence="the JSON that the gateway writes is limited too",
        option="`json_bytes` of an upstream",
        carrier=HTTP,
    ),
    Weakness(
        name="left_stream",
        server=MLSERVER,
        source="measured",
        repaired=None,
        request="an `infer_stream` over HTTP whose client leaves after the first response",
        effect="nobody else is answered until all responses are made",
        defence="streams over gRPC only are safe: use `oip+grpc://` where clients stream",
        carrier=HTTP,
    ),
    Weakness(
        name="many_inputs",
        server=KSERVE,
        source="measured",
        repaired=None,
        request="150,000 empty inputs in 0.45 MB of JSON",
        effect="nobody else is answered for half a minute",
        defence="a request has at most 2,048 tensors",
        option="`tensors`",
    ),
    Weakness(
        name="many_numbers",
        server=KSERVE,
        source="measured",
        repaired=None,
        request="2,000,000 numbers over HTTP",
        effect="nobody else is answered for seconds",
        defence="the elements of a request are limited over HTTP, its bytes over gRPC",
        option="`json_numbers`, `json_strings`, `request_bytes` of an upstream",
    ),
)
"""One row, one test."""


def weaknesses_of(server: ServerMetadata) -> Iterator[Weakness]:
    """Yield the weaknesses of a server."""
    return (weakness for weakness in WEAKNESSES if weakness.affects(server))


def weakness_lines(server: ServerMetadata, carrier: str, *, withheld: bool) -> list[str]:
    """Return a line for each weakness of a server, for the log and the status page.

    Args:
        server: Its metadata.
        carrier: The carrier to it.
        withheld: Whether cancellation is withheld.
    """
    lines = []
    for weakness in weaknesses_of(server):
        if weakness.carrier not in ("", carrier):
            continue
        defence = ""
        if weakness is CANCELLED_CALLS and not withheld:
            defence = "cancellation is forwarded: use `cancellation: auto`"
        lines.append(weakness.line(server, defence))
    return lines


def withholds_before(server: ServerMetadata | None) -> bool:
    """Return whether `cancellation: auto` withholds, as it also does for an unknown server."""
    return server is None or CANCELLED_CALLS.affects(server)


def ends_at_empty_classes(server: ServerMetadata | None, carrier: str) -> bool:
    """Return whether a server may end at classes of an empty output, as an unknown one may."""
    return carrier == EMPTY_CLASSES.carrier and (server is None or EMPTY_CLASSES.affects(server))
