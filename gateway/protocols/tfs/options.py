"""The options that a listener or an upstream may set.

Source: docs/protocols/tensorflow-serving.md, "11. Configuration".
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.context import ModelRef
from gateway.wire.options import (
    Reader,
    flag,
    mapping,
    matching,
    model,
    number,
    one_of,
    read_values,
    text,
)

DEFAULT_SIGNATURE: Final = "serving_default"
TENSORFLOW, KSERVE = "tensorflow", "kserve"
WORDS, NULL, REFUSE = "words", "null", "refuse"
FORWARD, IGNORE = "forward", "ignore"
PREDICTIONS, OUTPUTS = "predictions", "outputs"
ROOT: Final = "/"
_PATH: Final = re.compile(r"/[!\"$->@-~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexOptions:
    """The routes of a container of Vertex AI.

    Attributes:
        predict: The whole path of predictions.
        health: The whole path of probes.
        parameters: `forward` makes members of `parameters` parameters of the call, `ignore` drops
            them.
    """

    predict: str = "/predict"
    health: str = "/health"
    parameters: str = FORWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class TfsOptions:
    """The options, typed.

    Attributes:
        dialect: Both: `tensorflow` or `kserve`: which of the two REST forms it is.
        nonfinite: Listener: `words`, `null` or `refuse`, for numbers that are not finite; "" for
            words in `tensorflow`, null in `kserve`.
        columns: Listener: the key of replies to `inputs`: `outputs`, or `predictions`; "" for the
            key of the dialect.
        tensor_content: Listener: replies over gRPC have numbers as `tensor_content`, which few
            clients read, in place of typed fields.
        root: Listener: `GET /` says that the server is alive, as KServe's clients ask; the dialect
            of KServe has it always. `GET /v1/models` without a key goes to the server behind
            `passthrough`, where clients look for its protocol.
        cloudevents: Listener: `POST /` is a prediction of the default model, as an event.
        event_type: Listener: the type of events of replies.
        event_source: Listener: the source of events of replies; `{model}` is the model.
        vertex: Listener: the routes of a container of Vertex AI; None for no such routes.
        default_model: Listener: the model of requests that name none.
        signature: Upstream: the signature that calls name, and whose tensors the metadata have; ""
            names none.
        created: Listener: when the process started, seconds since 1970.
        shared: Listener: the protocol's own paths that clients of another protocol read too.
    """

    dialect: str = TENSORFLOW
    nonfinite: str = ""
    columns: str = ""
    tensor_content: bool = False
    root: bool = False
    cloudevents: bool = False
    event_type: str = "io.kserve.inference.response"
    event_source: str = "io.kserve.inference.{model}"
    vertex: VertexOptions | None = None
    default_model: ModelRef | None = None
    signature: str = DEFAULT_SIGNATURE
    created: int = 0
    shared: tuple[str, ...] = ()

    @property
    def is_kserve(self) -> bool:
        """Whether the dialect is that of KServe."""
        return self.dialect == KSERVE

    @property
    def changes_messages(self) -> bool:
        """Whether an option changes what messages say, which no message that passes has."""
        is_own = self.nonfinite or self.columns or self.tensor_content
        return bool(is_own or self.signature != DEFAULT_SIGNATURE)


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_values("tfs", _READERS, options)
    return options


def read_options(options: Mapping[str, Any]) -> TfsOptions:
    """Return *options*, typed; those of the process too.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return TfsOptions(**read_values("tfs", {**_READERS, **_OF_PROCESS}, options))


def process_options(_number: int, _count: int, /) -> Mapping[str, Any]:
    """Return when the process started, which all models have as their time of creation."""
    return {"created": int(time.time())}  # noqa: TID251  # a time of day, which clients show


def _vertex(key: str, value: Any) -> VertexOptions | None:
    """Read the routes; none where both are empty, as variables are in other containers."""
    section = mapping(key, value)
    if section.get("predict") == "" == section.get("health"):
        return None
    return VertexOptions(**read_values(key, _OF_VERTEX, section, f"{key}."))


def _shared(_key: str, value: Any) -> tuple[str, ...]:
    return tuple(value)


_WHOLE_PATH: Final = matching(_PATH, "a path of printable ASCII that begins with '/'")
_OF_VERTEX: Final[Mapping[str, Reader]] = {
    "predict": _WHOLE_PATH,
    "health": _WHOLE_PATH,
    "parameters": one_of(FORWARD, IGNORE),
}
_READERS: Final[Mapping[str, Reader]] = {
    "dialect": one_of(TENSORFLOW, KSERVE),
    "nonfinite": one_of(WORDS, NULL, REFUSE),
    "columns": one_of(OUTPUTS, PREDICTIONS),
    "tensor_content": flag,
    "root": flag,
    "cloudevents": flag,
    "event_type": text,
    "event_source": text,
    "vertex": _vertex,
    "default_model": model,
    "signature": text,
}
_OF_PROCESS: Final[Mapping[str, Reader]] = {"created": number(0, 1 << 40), "shared": _shared}
