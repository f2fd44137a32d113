"""What the configuration declares of a model: `models.NAME.protocols.openai`.

Source: docs/protocols/openai.md, "9. Configuration".
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from gateway.ir.text_tasks import (
    CompletionsForm,
    EmbeddingsForm,
    RerankForm,
    TextForms,
    TokenizerForm,
)
from gateway.wire.options import (
    OptionError,
    Reader,
    flag,
    list_of,
    mapping,
    mapping_of,
    number,
    one_of,
    read_section,
    text,
    wrong,
)

ReadFile = Callable[[str], str]

_EMBEDDINGS, _RERANK, _COMPLETIONS = "embeddings", "rerank", "completions"
_MOST: Final = 1_000_000
_MOST_TOKENS: Final = 1 << 30
_PREFIXES: Final = ("query", "passage")
_PLACEHOLDERS: Final = ("{query}", "{document}")
_POOLING: Final = one_of("none", "mean", "cls", "last")
_LONGEST: Final = "longest"
_LEFT: Final = "left"
_INPUT_NAMES: Final = ("ids", "mask", "types")


def read_declaration(value: Mapping[str, Any], read_file: ReadFile, /) -> TextForms:
    """Return the declaration *value*, typed.

    Args:
        value: From YAML.
        read_file: Returns the text of a file, by its path in YAML; raises ValueError.

    Raises:
        OptionError: A key does not exist, or a value is wrong.
    """
    readers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        _EMBEDDINGS: lambda found: _embeddings(found, read_file),
        _RERANK: lambda found: _rerank(found, read_file),
        _COMPLETIONS: _completions,
    }
    forms = {}
    for task, found in read_section("openai", dict.fromkeys(readers, _section), value).items():
        forms[task] = readers[task](found)
    return TextForms(protocol="openai", **forms)


def _embeddings(value: Mapping[str, Any], read_file: ReadFile) -> EmbeddingsForm:
    found = read_section(_EMBEDDINGS, {**_TOKENIZER, **_OF_EMBEDDINGS}, value, (_EMBEDDINGS,))
    tokenizer = _tokenizer((_EMBEDDINGS,), found, read_file)
    _check_pooling((_EMBEDDINGS,), found, tokenizer)
    default = found.get("default_prefix", "")
    if default and default not in found.get("prefixes", {}):
        expected = ", ".join(found.get("prefixes", {})) or "no default without 'prefixes'"
        raise OptionError(
            str(wrong("default_prefix", default, expected)), (_EMBEDDINGS, "default_prefix")
        )
    return EmbeddingsForm(tokenizer=tokenizer, **found)


def _rerank(value: Mapping[str, Any], read_file: ReadFile) -> RerankForm:
    found = read_section(_RERANK, {**_TOKENIZER, **_OF_RERANK}, value, (_RERANK,))
    tokenizer = _tokenizer((_RERANK,), found, read_file)
    _check_pooling((_RERANK,), found, tokenizer)
    for key in ("document", "query"):
        if "pair" in found and key in found:
            raise OptionError(
                f"pair stands beside {key!r}: expected one input for pairs, or two inputs",
                (_RERANK, "pair"),
            )
    if "pair" in found and tokenizer is not None:
        raise OptionError(
            "pair stands beside 'tokenizer', whose file has the form of a pair: expected one of "
            "them",
            (_RERANK, "pair"),
        )
    return RerankForm(tokenizer=tokenizer, **found)


def _completions(value: Mapping[str, Any]) -> CompletionsForm:
    found = read_section(_COMPLETIONS, _OF_COMPLETIONS, value, (_COMPLETIONS,))
    if "map" in found:
        found["names"] = found.pop("map")
    return CompletionsForm(**found)


def _tokenizer(
    path: tuple[str, ...], found: dict[str, Any], read_file: ReadFile
) -> TokenizerForm | None:
    """Take the keys of a tokenizer out of a section."""
    keys = {key: found.pop(key) for key in tuple(found) if key in _TOKENIZER}
    file = keys.pop("tokenizer", None)
    if file is None:
        if keys:
            key = next(iter(keys))
            raise OptionError(
                f"{key} is for models that take token ids: expected 'tokenizer' beside it",
                (*path, key),
            )
        return None
    at = (*path, "tokenizer")
    if find_spec("tokenizers") is None:
        message = "tokenizer needs the package tokenizers: pip install 'tensor-gateway[tokenizers]'"
        raise OptionError(message, at)
    try:
        content = read_file(file)
    except ValueError as error:
        raise OptionError(str(error), at) from error
    names = keys.pop("inputs", {})
    padding = keys.pop("padding", _LONGEST)
    is_left = keys.pop("padding_side", "right") == _LEFT
    fixed = None if padding == _LONGEST else padding
    if fixed is not None:
        keys.setdefault("max_tokens", fixed)
        if keys["max_tokens"] > fixed:
            raise OptionError(
                f"padding is {fixed}: expected at least 'max_tokens', which is "
                f"{keys['max_tokens']}",
                (*path, "padding"),
            )
    return TokenizerForm(text=content, fixed_length=fixed, pads_left=is_left, **names, **keys)


def _check_pooling(
    path: tuple[str, ...], found: Mapping[str, Any], tokenizer: TokenizerForm | None
) -> None:
    if tokenizer is None and found.get("pooling", "none") != "none":
        raise OptionError(
            f"pooling is {found['pooling']!r}: expected 'tokenizer' beside it, because a model of "
            "texts has no rows of tokens",
            (*path, "pooling"),
        )


def _section(key: str, value: Any) -> Mapping[str, Any]:
    return mapping(key, value)


def _name(key: str, value: Any) -> str:
    found = text(key, value)
    if not found:
        raise wrong(key, value, "a name")
    return found


def _input_names(key: str, value: Any) -> dict[str, str]:
    found: dict[str, str] = mapping_of(_name)(key, value)
    for name, each in found.items():
        if name not in _INPUT_NAMES:
            raise wrong(f"{key}.{name}", each, f"only the keys {', '.join(_INPUT_NAMES)}")
    return found


def _prefixes(key: str, value: Any) -> dict[str, str]:
    found: dict[str, str] = mapping_of(text)(key, value)
    for name, each in found.items():
        if name not in _PREFIXES:
            raise wrong(f"{key}.{name}", each, f"only the keys {', '.join(_PREFIXES)}")
    return found


def _dimensions(key: str, value: Any) -> bool | tuple[int, ...]:
    if isinstance(value, list | tuple):
        found: tuple[int, ...] = list_of(number(1, _MOST))(key, value)
        return found
    return flag(key, value)


def _padding(key: str, value: Any) -> str | int:
    if value == _LONGEST:
        return _LONGEST
    found: int = number(1, _MOST)(key, value)
    return found


def _pair(key: str, value: Any) -> str:
    found = text(key, value)
    if any(found.count(each) != 1 for each in _PLACEHOLDERS):
        raise wrong(key, value, f"a text with {' and '.join(_PLACEHOLDERS)}, each of them once")
    return found


_NAMES: Final = list_of(_name)
_TOKENIZER: Final[Mapping[str, Reader]] = {
    "tokenizer": _name,
    "inputs": _input_names,
    "max_tokens": number(1, _MOST_TOKENS),
    "truncate": flag,
    "padding": _padding,
    "padding_side": one_of("right", _LEFT),
    "max_total_tokens": number(1, _MOST_TOKENS),
}
_OF_EMBEDDINGS: Final[Mapping[str, Reader]] = {
    "input": _name,
    "output": _name,
    "pooling": _POOLING,
    "normalize": flag,
    "dimensions": _dimensions,
    "prefixes": _prefixes,
    "default_prefix": text,
    "max_inputs": number(1, _MOST),
    "tokens": _name,
}
_OF_RERANK: Final[Mapping[str, Reader]] = {
    "query": _name,
    "document": _name,
    "output": _name,
    "pair": _pair,
    "pooling": _POOLING,
    "column": number(0, _MOST),
    "score": one_of("none", "sigmoid", "softmax"),
    "max_documents": number(1, _MOST),
    "return_documents": flag,
    "tokens": _name,
}
_OF_COMPLETIONS: Final[Mapping[str, Reader]] = {
    "input": _name,
    "output": _name,
    "map": mapping_of(_name),
    "sampling": _name,
    "parameters": _NAMES,
    "ignore": _NAMES,
}
