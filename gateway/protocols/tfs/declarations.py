"""What the configuration declares of a model: `models.NAME.protocols.tfs`.

Source: docs/protocols/tensorflow-serving.md, "11. Configuration".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.wire.options import (
    Reader,
    mapping,
    mapping_of,
    one_of,
    read_section,
    text,
    wrong,
)

PREDICT, CLASSIFY, REGRESS = "predict", "classify", "regress"
TEXT, B64 = "text", "b64"
_VERSION_END: Final = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSignature:
    """One signature of a model, and what serves it.

    Attributes:
        method: What its clients call: predict, classify or regress.
        model: Name of the model that serves it; "" for the one that has the declaration.
        inputs: Names of the model's inputs by those of clients; others are equal.
        outputs: Names of the model's outputs by those of clients; others are equal.
        input: The input of examples, of classify and regress.
        classes: The output of labels, of classify; "" for none.
        scores: The output of scores, of classify; "" for none.
        output: The output of values, of regress.
    """

    method: str = PREDICT
    model: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    input: str = "inputs"
    classes: str = "classes"
    scores: str = "scores"
    output: str = "outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDeclaration:
    """What is declared of one model.

    Attributes:
        labels: Versions by label.
        signatures: By name.
        bytes: How outputs of BYTES that are not UTF-8 are written into JSON: "text" refuses them,
            "b64" writes each of them as an object. Names that end with `_bytes` always have b64.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    signatures: Mapping[str, DeclaredSignature] = field(default_factory=dict)
    bytes: str = TEXT

    @property
    def is_of_labels(self) -> bool:
        """Whether nothing else than labels is declared."""
        return not self.signatures and self.bytes == TEXT


NO_DECLARATION: Final = ModelDeclaration()


def read_declaration(
    value: Mapping[str, Any], _read_file: Callable[[str], str], /
) -> ModelDeclaration:
    """Return the declaration *value*, typed.

    Raises:
        OptionError: A key does not exist, or a value is wrong.
    """
    return ModelDeclaration(**read_section("tfs", _OF_MODEL, value))


def _version(key: str, value: Any) -> str:
    found = str(value)
    if not (found.isascii() and found.isdecimal() and int(found) < _VERSION_END):
        raise wrong(key, value, "the number of a version")
    return str(int(found))


def _signatures(key: str, value: Any) -> dict[str, DeclaredSignature]:
    found = {}
    for name, each in mapping(key, value).items():
        section = mapping(f"{key}.{name}", each)
        found[name] = DeclaredSignature(
            **read_section(f"signature {name!r}", _OF_ONE, section, (key, name))
        )
    return found


_NAMES: Final = mapping_of(text)
_OF_ONE: Final[Mapping[str, Reader]] = {
    "method": one_of(PREDICT, CLASSIFY, REGRESS),
    "model": text,
    "inputs": _NAMES,
    "outputs": _NAMES,
    "input": text,
    "classes": text,
    "scores": text,
    "output": text,
}
_OF_MODEL: Final[Mapping[str, Reader]] = {
    "labels": mapping_of(_version),
    "signatures": _signatures,
    "bytes": one_of(TEXT, B64),
}
