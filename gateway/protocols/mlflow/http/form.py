"""What a response needs of its request, kept with the call, and what is declared of models.

Source: docs/protocols/mlflow.md, "5. Responses".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.calls import Call, InferResponse
from gateway.ir.context import Origin
from gateway.ir.values.untyped import RowsForm
from gateway.protocols.mlflow.errors import FORM
from gateway.protocols.mlflow.paths import ScoringPath
from gateway.wire.http import HttpRequest
from gateway.wire.rows.write import RowStyle

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


class DeclaredRows:
    """What the configuration declares of the rows of models.

    Args:
        style: How elements are written of a model of which nothing is declared.
    """

    def __init__(self, style: RowStyle) -> None:
        self._style = style
        self._forms: Mapping[str, RowsForm] = {}
        self._styles: Mapping[str, RowStyle] = {}

    def declare(self, declared: Mapping[str, Any]) -> None:
        """Replace the declarations, by the names of models."""
        self._forms = {name: form for name, form in declared.items() if isinstance(form, RowsForm)}
        self._styles = {
            name: RowStyle(nonfinite=self._style.nonfinite, base64=form.binary)
            for name, form in self._forms.items()
            if form.binary
        }

    def columns(self, model: str) -> tuple[str, ...]:
        """Return the columns of the only input of a model, by its name; () for none."""
        form = self._forms.get(model)
        return () if form is None else form.columns

    def style(self, model: str) -> RowStyle:
        """Return how the tensors of a model are written, by its name."""
        return self._styles.get(model, self._style)

    def style_of(self, call: Call[Any], reply: InferResponse) -> RowStyle:
        """Return how the outputs of *reply* are written; the listener may name its model."""
        return self.style((reply.model if call.model is None else call.model).name)
