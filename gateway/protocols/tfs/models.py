"""The model of a request: its name, its version or label, and the signature that is called.

Source: docs/protocols/tensorflow-serving.md, "4. Models, versions and signatures".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from msgspec import Struct

from gateway.api.protocol import Limitations, named_model
from gateway.ir.calls import Call, OpaqueCall
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import InvalidRequest, ModelNotFound, Unsupported
from gateway.ir.limits import MessageLimits, check_name
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.protocols.tfs.declarations import NO_DECLARATION, DeclaredSignature, ModelDeclaration
from gateway.protocols.tfs.errors import UnknownSignature
from gateway.protocols.tfs.options import DEFAULT_SIGNATURE

_VERSION_END: Final = 1 << 63
_PLACEHOLDER: Final = "1"
_MODELS: Final = 256
_PLAIN: Final = DeclaredSignature()
NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_NUMERIC: Final = NEEDS | {Need.NUMERIC_VERSIONS}


class Spec(Struct, frozen=True):
    """The model of a request, as the client names it.

    Attributes:
        name: Its name.
        version: The number of its version; 0 for the latest.
        label: A label instead of a version; "" for none.
        signature: Name of the signature; "" for the default.
    """

    name: str = ""
    version: int = 0
    label: str = ""
    signature: str = ""

    def with_signature(self, signature: str) -> Spec:
        """Return a copy with another signature; itself for the same."""
        if signature == self.signature:
            return self
        return Spec(self.name, self.version, self.label, signature)


class CalledModel(Struct, frozen=True):
    """The model of a call, and what its reply needs.

    Attributes:
        spec: The names that the client sent.
        model: The model that the call names.
        signature: What serves the call.
        declared: What the configuration declares of the client's model.
        needs: What the reply must have.
    """

    spec: Spec
    model: ModelRef
    signature: DeclaredSignature = _PLAIN
    declared: ModelDeclaration = NO_DECLARATION
    needs: frozenset[Need] = NEEDS

    @property
    def is_plain(self) -> bool:
        """Whether a server of TensorFlow reads the request as the configuration does."""
        return self.declared.is_of_labels and not self.spec.label

    @property
    def signature_name(self) -> str:
        """The name of the signature, for replies."""
        return self.spec.signature or DEFAULT_SIGNATURE

    def inputs(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return *tensors* with the names of the model that serves the signature."""
        names = self.signature.inputs
        if not names:
            return tuple(tensors)
        return tuple([each.renamed(names.get(each.name, each.name)) for each in tensors])

    def requested(self, names: Sequence[str]) -> tuple[RequestedOutput, ...]:
        """Return the requested outputs, by the names of clients.

        Raises:
            InvalidRequest: One is named twice.
        """
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidRequest(f"output_filter names {twice!r} twice: expected it once")
        outputs = self.signature.outputs
        return tuple([RequestedOutput(outputs.get(name, name)) for name in names])

    def output_names(self) -> Mapping[str, str]:
        """Return the names of clients by those of the model's outputs."""
        return {own: name for name, own in self.signature.outputs.items()}

    def outputs(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return *tensors* with the names of clients."""
        if not self.signature.outputs:
            return tensors
        names = self.output_names()
        return [each.renamed(names.get(each.name, each.name)) for each in tensors]


class ModelTable:
    """What the configuration declares of all models.

    Args:
        limits: The limits of a message.

    Attributes:
        find: Returns the model of a call, see `_find`.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._declared: Mapping[str, ModelDeclaration] = {}
        # Clients repeat the same few models. What raises is not cached.
        self.find = lru_cache(_MODELS)(self._find)

    def declare(self, declared: Mapping[str, ModelDeclaration]) -> None:
        """Replace the declarations, by the names of models."""
        self._declared = declared
        self.find.cache_clear()

    def _find(
        self, spec: Spec, methods: tuple[str, ...] = (), allows_nameless: bool = False
    ) -> CalledModel:
        """Return the model of a call.

        Args:
            spec: The names that the client sent.
            methods: The methods of which the signature must have one; none for a question.
            allows_nameless: Without a name it is the default model, which only the router knows.

        Raises:
            ModelNotFound: The request names no model.
            UnknownSignature: The model does not have the signature, or not with this method.
            InvalidRequest: The label does not exist, or the name is not allowed.
        """
        if not spec.name and not allows_nameless:
            raise ModelNotFound("the request names no model: expected model_spec.name")
        check_name("model name", spec.name, self._limits.model_name_bytes, "model_name_bytes")
        declared = self._declared.get(spec.name, NO_DECLARATION)
        version = self._version(spec, declared)
        signature = _signature(spec, declared, methods) if methods else _PLAIN
        return CalledModel(
            spec,
            ModelRef(signature.model or spec.name, version),
            signature,
            declared,
            _NUMERIC if version == _PLACEHOLDER else NEEDS,
        )

    def unread(self, spec: Spec) -> tuple[ModelRef, CalledModel] | None:
        """Return the model of a request that only its server can read, as called and as named.

        None where the configuration decides: it declares signatures, or other labels.
        """
        declared = self._declared.get(spec.name, NO_DECLARATION)
        label = declared.labels.get(spec.label)
        if (
            not spec.name
            or not declared.is_of_labels
            or (spec.label and declared.labels and not label)
        ):
            return None
        named = ModelRef(spec.name, str(spec.version) if spec.version else "")
        return (ModelRef(spec.name, label) if label else named), CalledModel(spec, named)

    def _version(self, spec: Spec, declared: ModelDeclaration) -> str:
        if spec.label:
            version = declared.labels.get(spec.label)
            if version is None:
                known = ", ".join(map(repr, declared.labels)) or "none"
                raise InvalidRequest(
                    f"model {spec.name!r} has no version label {spec.label[:64]!r}: its labels are "
                    f"{known} (models: NAME: protocols: tfs: labels)"
                )
            return version
        if spec.version < 0:
            raise InvalidRequest(f"model version is {spec.version}: expected a number of 0 or more")
        return str(spec.version) if spec.version else ""


def _signature(spec: Spec, declared: ModelDeclaration, methods: Sequence[str]) -> DeclaredSignature:
    """Return the signature of a call; the default one is the model itself."""
    name = spec.signature or DEFAULT_SIGNATURE
    found = declared.signatures.get(name)
    if found is None and name == DEFAULT_SIGNATURE:
        found = _PLAIN
    if not spec.signature and found is not None and found.method not in methods:
        # The default of a verb is the first signature that is declared for it.
        found = next(
            (each for each in declared.signatures.values() if each.method in methods), found
        )
    if found is None:
        names = ", ".join(map(repr, dict.fromkeys((DEFAULT_SIGNATURE, *declared.signatures))))
        raise UnknownSignature(
            f"Serving signature name: {name[:64]!r} not found in signature def: model "
            f"{spec.name!r} has {names}"
        )
    if found.method not in methods:
        raise UnknownSignature(
            f"signature {name!r} of model {spec.name!r} is for {found.method}: expected one for "
            f"{' or '.join(methods)} (models: NAME: protocols: tfs: signatures)"
        )
    return found


def number_of(version: str) -> int:
    """Return a version as a number, 1 for one that is none, as metadata have it."""
    is_number = version.isascii() and version.isdecimal() and len(version) <= len(str(_VERSION_END))
    found = int(version) if is_number else 0
    return found if 0 < found < _VERSION_END else int(_PLACEHOLDER)


def required_version(model: ModelRef) -> int:
    """Return the version of a call to an upstream as a number; 0 for none.

    Raises:
        Unsupported: It is no number of 64 bits.
    """
    version = model.version
    if not version:
        return 0
    is_number = version.isascii() and version.isdecimal() and len(version) <= len(str(_VERSION_END))
    if not is_number or int(version) >= _VERSION_END:
        raise Unsupported(
            f"version of model {model.name!r} is {version[:40]!r}: TensorFlow expects a number",
            model=model,
        )
    return int(version)


required_model: Final = partial(named_model, "TensorFlow")


def version_is_same(call: Call[Any], called: ModelRef) -> bool:
    """Return whether the route leaves the version of a message as it is.

    A question about a model is routed by its name alone.
    """
    version = "" if call.model is None else call.model.version
    return version == called.version or (type(call) is OpaqueCall and not version)


LIMITATIONS: Final = Limitations(
    title="TensorFlow Serving", sequences=True, classes=True, shared_memory=True
)


def known_model(called: CalledModel) -> ModelRef:
    """Return the model whose metadata are asked for, without a version that is a placeholder."""
    model = called.model
    return ModelRef(model.name) if Need.NUMERIC_VERSIONS in called.needs else model
