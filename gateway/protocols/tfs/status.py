"""States of the versions of a model, for both carriers.

Source: docs/protocols/tensorflow-serving.md, "6. Status and metadata".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.ir.errors import ModelNotFound, VersionNotFound
from gateway.ir.metadata import ModelState, ServerStatus
from gateway.protocols.tfs.models import CalledModel, number_of
from gateway.schema import tensorflow_serving_pb2 as pb

_STATES: Final[Mapping[ModelState, pb.ModelVersionStatus.State]] = {
    ModelState.UNKNOWN: pb.ModelVersionStatus.AVAILABLE,
    ModelState.READY: pb.ModelVersionStatus.AVAILABLE,
    ModelState.LOADING: pb.ModelVersionStatus.LOADING,
    ModelState.UNLOADING: pb.ModelVersionStatus.UNLOADING,
    ModelState.UNAVAILABLE: pb.ModelVersionStatus.END,
}
_UNKNOWN_CODE: Final = 2
AVAILABLE: Final = pb.ModelVersionStatus.AVAILABLE


class VersionState(NamedTuple):
    """One version of a model.

    Attributes:
        version: Its number.
        state: A state of the protocol.
        reason: Why it is not available; "" if nothing tells it.
    """

    version: int
    state: int
    reason: str = ""

    @property
    def state_name(self) -> str:
        """The name of the state."""
        return pb.ModelVersionStatus.State.Name(self.state)


def versions_of(called: CalledModel, status: ServerStatus) -> Sequence[VersionState]:
    """Return the versions of a model, the newest first; for a label all of them, as the server.

    Raises:
        ModelNotFound: There is no such model.
        VersionNotFound: It does not have the version.
    """
    name = called.spec.name
    if not status.models:
        raise ModelNotFound(f"Could not find any versions of model {name}")
    model = status.models[0]
    found = {
        number_of(each): VersionState(number_of(each), AVAILABLE)
        for each in model.metadata.versions
    }
    for entry in model.entries:
        number = number_of(entry.version)
        if entry.version or not found:
            found[number] = VersionState(number, _STATES[entry.state], entry.reason)
    if not found:
        found[1] = VersionState(1, AVAILABLE)
    wanted = called.spec.version
    if not wanted:
        return sorted(found.values(), reverse=True)
    if wanted not in found:
        raise VersionNotFound(f"Could not find version {wanted} of model {name}")
    return [found[wanted]]


def write_status(states: Sequence[VersionState]) -> pb.GetModelStatusResponse:
    """Return the message with the states of versions."""
    message = pb.GetModelStatusResponse()
    for each in states:
        written = message.model_version_status.add(version=each.version, state=each.state)
        written.status.SetInParent()
        if each.reason:
            written.status.error_code = _UNKNOWN_CODE
            written.status.error_message = each.reason
    return message


def status_document(states: Sequence[VersionState]) -> list[dict[str, Any]]:
    """Return the JSON of the states of versions, whose numbers are strings."""
    return [
        {
            "version": str(each.version),
            "state": each.state_name,
            "status": {
                "error_code": "UNKNOWN" if each.reason else "OK",
                "error_message": each.reason,
            },
        }
        for each in states
    ]


def is_available(message: pb.GetModelStatusResponse) -> bool:
    """Return whether any version of a server's model serves calls."""
    return any(
        each.state == pb.ModelVersionStatus.AVAILABLE for each in message.model_version_status
    )
