"""The model of a request: its name, and a version that is text such as 1.0.

Source: docs/protocols/torchserve.md, "2. Paths".
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from gateway.ir.context import ModelRef, Need
from gateway.ir.limits import MessageLimits, check_name
from gateway.protocols.torchserve.declarations import NO_FORM, BodyForm
from gateway.protocols.torchserve.errors import UnknownVersion
from gateway.protocols.torchserve.messages import reply_needs

_NUMBER: Final = re.compile(r"(0|[1-9][0-9]{0,17})(?:\.0)?")
_PLACEHOLDER: Final = "1"


class TorchServeModel(Struct, frozen=True):
    """The model of a request, as the client names it and as the gateway does.

    Attributes:
        name: The client's name of it; "" for none.
        version: The client's version; "" for the default one.
        model: The model of the call; None for that of the listener.
        form: What is declared of it.
        needs: What the reply to an inference needs.
    """

    name: str
    version: str
    model: ModelRef | None
    form: BodyForm
    needs: frozenset[Need]


class BodyForms:
    """What the configuration declares of all models.

    Args:
        limits: The limits of a message.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._forms: Mapping[str, BodyForm] = {}

    def declare(self, declared: Mapping[str, Any]) -> None:
        """Replace the declarations, by the names of models."""
        self._forms = {name: form for name, form in declared.items() if isinstance(form, BodyForm)}

    def find(self, name: str, version: str) -> TorchServeModel:
        """Return the model of a request; without a name it is that of the listener.

        Raises:
            InvalidRequest: The name is not allowed.
            UnknownVersion: The version is no number, and nothing else is declared.
        """
        limit = self._limits.model_name_bytes
        check_name("model name", name, limit, "model_name_bytes")
        check_name("model version", version, limit, "model_name_bytes")
        form = self._forms.get(name, NO_FORM)
        own = self._own_version(name, version, form)
        needs = reply_needs(form)
        if own == _PLACEHOLDER:
            needs |= {Need.NUMERIC_VERSIONS}
        return TorchServeModel(name, version, ModelRef(name, own) if name else None, form, needs)

    def unread(self, name: str, version: str) -> TorchServeModel:
        """Return the model of a message that only its server reads: versions are texts there."""
        check_name("model name", name, self._limits.model_name_bytes, "model_name_bytes")
        check_name("model version", version, self._limits.model_name_bytes, "model_name_bytes")
        form = self.form(name)
        return TorchServeModel(name, version, ModelRef(name, version), form, reply_needs(form))

    def form(self, name: str) -> BodyForm:
        """Return what is declared of the model *name*."""
        return self._forms.get(name, NO_FORM)

    def version_of(self, model: ModelRef) -> str:
        """Return the version of *model* as its servers name it; "" for none."""
        return client_version(model.version, self.form(model.name)) if model.version else ""

    def default(self, model: ModelRef | None) -> TorchServeModel:
        """Return the model of requests that name none."""
        if model is None:
            return TorchServeModel("", "", None, NO_FORM, reply_needs(NO_FORM))
        form = self._forms.get(model.name, NO_FORM)
        return TorchServeModel(model.name, "", model, form, reply_needs(form))

    def _own_version(self, name: str, version: str, form: BodyForm) -> str:
        if not version:
            return ""
        own = form.version_map.get(version)
        if own is not None:
            return own
        found = _NUMBER.fullmatch(version)
        if found is None:
            raise UnknownVersion(
                f"Model version: {version[:64]} does not exist for model: {name}; expected a number"
                " such as 1.0, or another one in models.NAME.protocols.torchserve.version_map",
                model=ModelRef(name, version),
            )
        return found[1]


def client_version(version: str, form: BodyForm) -> str:
    """Return a version of the gateway as clients and servers of TorchServe name it."""
    for name, own in form.version_map.items():
        if own == version:
            return name
    return f"{version}.0" if version.isascii() and version.isdecimal() else version
