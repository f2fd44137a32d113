"""An authoriser: a client may not use models that begin with `secret`."""

from typing import Any

from gateway.api import Identity
from gateway.api.tensors import Call


class NoSecrets:
    def authorise(self, identity: Identity, call: Call[Any], /) -> bool:
        return call.model is None or not call.model.name.startswith("secret")
