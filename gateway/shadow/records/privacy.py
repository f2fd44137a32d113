"""What of a call is written: by default no payload, no parameter, no header and no error text."""

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Payload = Literal["none", "hash", "full"]

_PAYLOADS: Final[tuple[Payload, ...]] = ("none", "hash", "full")

_CREDENTIALS: Final = re.compile(
    r"(proxy-)?authorization|(set-)?cookie|.*[-_](key|token|secret|password|auth|session|signature)"
    r"|(.*[-_])?(apikey|jwt|credentials?)|key|token|secret|password|x-amz-.*"
)


def is_credential(header: str) -> bool:
    """Return whether a header of this name may contain a credential."""
    return _CREDENTIALS.fullmatch(header.lower()) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """What a capture contains besides names, datatypes, shapes, sizes and times.

    Attributes:
        payload: Of tensors: nothing, a keyed hash, or the elements. `full` also writes the texts of
            errors.
        tensors: What is written of a tensor, by its name.
        parameters: Whether parameters of requests and replies are written.
        headers: Names of headers to write, in lower case.
        wire: Write the messages as the client sent and received them; needs `full`.
        can_lack_elements: Elements that are not in memory are left out; otherwise the call is.

    Raises:
        ValueError: A header may contain a credential, or `wire` lacks `full`.
    """

    payload: Payload = "none"
    tensors: Mapping[str, Payload] = field(default_factory=dict)
    parameters: bool = False
    headers: tuple[str, ...] = ()
    wire: bool = False
    can_lack_elements: bool = False

    def __post_init__(self) -> None:
        for name in self.headers:
            if is_credential(name):
                raise ValueError(f"headers: {name!r} may contain a credential; remove it")
        if self.wire and self.payload != "full":
            raise ValueError(f"wire: payload is {self.payload!r}; expected 'full'")

    @property
    def reads_elements(self) -> bool:
        """Whether the elements of a tensor are needed."""
        return self.payload != "none" or any(each != "none" for each in self.tensors.values())

    def of_tensor(self, name: str) -> Payload:
        """Return what is written of the elements of the tensor *name*."""
        return self.tensors.get(name, self.payload)


def least_payload(payloads: Iterable[Payload]) -> Payload:
    """Return the payload of tensors that share one buffer: the one that shows least."""
    return min(payloads, key=_PAYLOADS.index)


class Hasher:
    """HMAC-SHA-256 under a key that exists in this object only.

    Equal elements have equal hashes within one process. Nobody can test a guess without the key.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def __call__(self, elements: memoryview) -> bytes:
        """Return the hash of the wire form of a tensor."""
        return hmac.new(self._key, elements, hashlib.sha256).digest()
