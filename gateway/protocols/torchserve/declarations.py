"""What the configuration declares of a model: `models.NAME.protocols.torchserve`.

Source: docs/protocols/torchserve.md, "4. Declarations".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.wire.options import (
    OptionError,
    Reader,
    flag,
    mapping_of,
    matching,
    one_of,
    read_section,
    text,
    wrong,
)

JSON, BYTES, TEXT, COLUMNS, VALUE = "json", "bytes", "text", "columns", "value"
BODY = "body"
SETTING: Final = "models.NAME.protocols.torchserve"
_CONTENT_TYPE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!-~][ -~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyForm:
    """How the bytes of clients become inputs of a model, and its outputs become bytes.

    Attributes:
        request: `json`, `bytes`, `text` or `columns`; "" to decide by the body and the inputs.
        input: The only input of a body that does not name it; "" for that of the model.
        batch: A request is one item, and the model has a batch axis; None to ask its metadata.
        response: `json`, `value`, `bytes` or `text`; "" for a value of one output, an object of
            several.
        output: The only output of a response; "" for that of the model.
        content_type: Of a response; "" for none, as a handler that sets none.
        envelope: `json` for a list of items below `instances`; otherwise `body`.
        version_map: Versions of the model by those of clients.
    """

    request: str = ""
    input: str = ""
    batch: bool | None = None
    response: str = ""
    output: str = ""
    content_type: str = ""
    envelope: str = BODY
    version_map: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_envelope(self) -> bool:
        """Whether a body is a list of items."""
        return self.envelope == JSON

    @property
    def has_columns(self) -> bool:
        """Whether a body is a form with one field for each input."""
        return self.request == COLUMNS

    @property
    def adds_axis(self) -> bool:
        """Whether the configuration says that each item gets a batch axis."""
        return self.batch is True and not self.has_envelope

    @property
    def asks_for_axis(self) -> bool:
        """Whether the metadata of the model say so."""
        return self.batch is None and not self.has_envelope


NO_FORM: Final = BodyForm()


def read_declaration(value: Mapping[str, Any], _read_file: Callable[[str], str], /) -> BodyForm:
    """Return the declaration *value*, typed.

    Raises:
        OptionError: A key does not exist, or a value is wrong.
    """
    form = BodyForm(**read_section("torchserve", _READERS, value))
    if form.has_envelope and form.request not in ("", JSON):
        raise OptionError(
            f"request is {form.request!r} beside envelope: json; expected request: json",
            ("request",),
        )
    if form.input and form.request == COLUMNS:
        raise OptionError("input stands beside request: columns, which names inputs", ("input",))
    if form.output and form.response == JSON:
        raise OptionError("output stands beside response: json, which names outputs", ("output",))
    return form


def _version(key: str, value: Any) -> str:
    found = str(value) if isinstance(value, int) else value
    if not isinstance(found, str) or not found:
        raise wrong(key, value, "a version of the model")
    return found


_READERS: Final[Mapping[str, Reader]] = {
    "request": one_of(JSON, BYTES, TEXT, COLUMNS),
    "input": text,
    "batch": flag,
    "response": one_of(JSON, VALUE, BYTES, TEXT),
    "output": text,
    "content_type": matching(_CONTENT_TYPE, "a content type, such as application/json"),
    "envelope": one_of(BODY, JSON),
    "version_map": mapping_of(_version),
}
