"""What the clients of one listener may do, and the layers that see to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.policies.access.authorise import Authorise, ListenerAccess
from gateway.policies.access.external import AskExternal
from gateway.policies.access.owners import OwnRegions, OwnSequences, SequenceIds
from gateway.service import Service


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """What the clients of a listener may do; None where nothing limits them.

    Attributes:
        rules: The permissions.
        external: Builds the layer that asks a program outside of the gateway.
        sequence_ids: Keeps the sequences and the memory of clients apart.
    """

    rules: ListenerAccess | None = None
    external: Callable[..., AskExternal] | None = None
    sequence_ids: SequenceIds | None = None


def _layer(
    name: str, purpose: str, build: Callable[[Entries, ClientAccess], Service | None]
) -> Layer:
    """Return a layer of what clients may do; calls that come by no listener may be anything.

    It raises LookupError where a listener has no `ClientAccess`.
    """

    def build_at(inner: Entries, at: LayerContext) -> Service | None:
        return build(inner, at.part(ClientAccess)) if at.name else None

    return Layer(name, purpose, "listener", build_at)


def _authorise(inner: Entries, access: ClientAccess) -> Service | None:
    if access.rules is None:
        return None
    return Authorise(inner.questions, access.rules, inference=inner.inference)


def _ask_external(inner: Entries, access: ClientAccess) -> Service | None:
    if access.external is None:
        return None
    return access.external(inner.questions, inference=inner.inference)


def _own_sequences(inner: Entries, access: ClientAccess) -> Service | None:
    if access.sequence_ids is None:
        return None
    return OwnSequences(inner.questions, access.sequence_ids)


def _own_regions(inner: Entries, access: ClientAccess) -> Service | None:
    if access.sequence_ids is None:
        return None
    return OwnRegions(inner.questions, inference=inner.inference)


AUTHORISE: Final = _layer(
    "Authorise", "refuses what the client may not do, if `security.rules` has rules", _authorise
)
ASK_EXTERNAL: Final = _layer(
    "AskExternal", "refuses what the program of `security.external` denies", _ask_external
)
OWN_SEQUENCES: Final = _layer(
    "OwnSequences", "keeps the sequences of clients apart, if there are clients", _own_sequences
)
OWN_REGIONS: Final = _layer(
    "OwnRegions", "keeps the shared memory of clients apart, if there are clients", _own_regions
)
