"""What the configuration declares of models for protocols: `models.NAME.protocols`."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.config.models import Config
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.ir.text_tasks import TextForms
from gateway.policies.signatures import SIGNATURE, DescribedModels
from gateway.policies.texts.tokenizer import tokenizer_of
from gateway.registry import protocol
from gateway.wire.options import OptionError

Declarations = Mapping[str, Mapping[str, object]]
"""By model, and by protocol."""

_LARGEST_FILE: Final = 256 << 20


def read_declarations(config: Config, directory: Path) -> Declarations:
    """Return all declarations, with the contents of the files that they name.

    Args:
        config: Without errors.
        directory: Paths are relative to it.

    Raises:
        LookupError: A protocol does not exist.
        ValueError: A declaration is wrong.
    """
    found: dict[str, dict[str, object]] = {}
    for name, protocols in config.declared_protocols().items():
        for key, value in protocols.items():
            found.setdefault(name, {})[key] = _read(key, value, directory)
    return found


def described_models(config: Config, declarations: Declarations) -> DescribedModels:
    """Return what a configuration says about models of upstreams, by their name there."""
    own = {name for name, model in config.models.items() if model.backend is not None}
    signatures = {
        name: signature
        for name, model in config.models.items()
        if name not in own and (signature := SIGNATURE.of(model)) is not None
    }
    return DescribedModels(
        signatures, {name: each for name, each in declarations.items() if name not in own}
    )


def check_declarations(config: Config, directory: Path) -> Iterator[Finding]:
    """Yield what is wrong with the declarations, each with its key."""
    for name, model in config.models.items():
        for key, value in model.protocols.items():
            at: KeyPath = ("models", name, "protocols", key)
            try:
                declared = _read(key, value, directory)
            except OptionError as error:
                yield (*at, *error.path), error.text
            except (LookupError, ValueError) as error:
                yield at, str(error.args[0])
            else:
                yield from _check_tokenizers(at, declared)


def _read(key: str, value: Mapping[str, Any], directory: Path) -> object:
    spec = protocol(key)
    if spec.declaration is None:
        raise ValueError(f"protocol {key!r} needs no declaration of a model: expected no such key")
    return spec.declaration(value, partial(_read_file, directory))


def _read_file(directory: Path, name: str) -> str:
    path = directory / name
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"{name!r} has more than {_LARGEST_FILE >> 20} MiB")
        return path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{name!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name!r} is not UTF-8") from error


def _check_tokenizers(at: KeyPath, declared: object) -> Iterator[Finding]:
    if not isinstance(declared, TextForms):
        return
    for task, form in (("embeddings", declared.embeddings), ("rerank", declared.rerank)):
        if form is not None and form.tokenizer is not None:
            try:
                tokenizer_of(form.tokenizer)
            except ValueError as error:
                yield (*at, task, "tokenizer"), f"tokenizer {error}"
