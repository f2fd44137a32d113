"""What a response needs of its request, kept with the call.

Source: docs/protocols/mlflow.md, "5. Responses".
"""

from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.calls import Call
from gateway.ir.context import Origin
from gateway.protocols.mlflow.errors import FORM
from gateway.protocols.mlflow.paths import ScoringPath
from gateway.wire.http import HttpRequest

NAME: Final = FORM.codec


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringForm:
    """What the response to one request depends on.

    Attributes:
        kind: What its path is for.
        is_csv: An answer that is one matrix is CSV.
        is_lines: Each row is a line of JSON.
        can_stream: The replies of a decoupled model may be sent one by one.
        returned: The headers that go back to the caller: SageMaker's custom attributes. Source:
            docs/protocols/mlflow.md, "9. SageMaker".
    """

    kind: ScoringPath
    is_csv: bool = False
    is_lines: bool = False
    can_stream: bool = False
    returned: tuple[tuple[str, str], ...] = ()


INVOCATION: Final = ScoringForm(kind=ScoringPath.INVOCATIONS)


def origin_of(call: Call[Any]) -> Origin | None:
    """Return the request of a call, if it is of this protocol."""
    origin = call.context.origin
    is_own = origin is not None and origin.codec == NAME and isinstance(origin.wire, HttpRequest)
    return origin if is_own else None


def form_of(call: Call[Any]) -> ScoringForm:
    """Return the form of a call."""
    origin = origin_of(call)
    return origin.form if origin and isinstance(origin.form, ScoringForm) else INVOCATION
