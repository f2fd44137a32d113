"""GrpsMessage as a value, whether it came as protobuf or as JSON.

Here lives what both forms share: the five ways to carry data and the Status.  Not here: bytes
(proto.py, json.py) and what a message means as a call (forms.py, calls.py).

Source: docs/protocols/grps.md, "4. Messages".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.ir.errors import InvalidTensor
from gateway.ir.tensor import Tensor


class ContentFormat(enum.Enum):
    """Which member of the message holds its data."""

    BIN_DATA = "bin_data"
    STR_DATA = "str_data"
    GTENSORS = "gtensors"
    NDARRAY = "ndarray"
    GMAP = "gmap"


class Flag(enum.IntEnum):
    """Source: `Status.StatusFlag`; the enumeration counts, not the old comment beside it."""

    UNKNOWN = 0
    SUCCESS = 1
    FAILURE = 2


@dataclass(frozen=True, slots=True)
class GrpsStatus:
    """What an answer says of itself.

    Attributes:
        flag: May be a number that the enumeration does not have.
    """

    code: int = 0
    msg: str = ""
    flag: int = Flag.UNKNOWN


SUCCESS: Final = GrpsStatus(200, "OK", Flag.SUCCESS)


def failure(code: int, text: str) -> GrpsMessage:
    """Return an answer that says that something failed, and nothing else."""
    return GrpsMessage(status=GrpsStatus(code, text, Flag.FAILURE))


MapValue = str | bytes | int | float
GMAP_FIELDS: Final = ("s_s", "s_b", "s_i32", "s_i64", "s_f", "s_d")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpsMessage:
    """A message of grps.

    Attributes:
        form: Which of the following is the data; None for no data.
        data: For `BIN_DATA`.
        text: For `STR_DATA`.
        tensors: For `GTENSORS`, in datatypes that grps has; for `NDARRAY` the one, where it is not
            just the marker of protobuf.
        entries: For `GMAP`, by field and key.
    """

    form: ContentFormat | None = None
    model: str = ""
    status: GrpsStatus | None = None
    data: bytes | memoryview = b""
    text: str = ""
    tensors: tuple[Tensor, ...] = ()
    entries: Mapping[str, Mapping[str, MapValue]] = field(default_factory=dict)


def check_names(tensors: tuple[Tensor, ...]) -> None:
    """Check that there are tensors, all of them named or none, and no name twice.

    Raises:
        InvalidTensor: It is not so.

    Source: docs/protocols/grps.md, "4. Messages".
    """
    if not tensors:
        raise InvalidTensor("gtensors has no tensors, at least one is needed")
    if len(tensors) == 1:
        return
    names = [tensor.name for tensor in tensors]
    if not any(names):
        return
    if not all(names):
        raise InvalidTensor(
            f"tensor number {names.index('')} has no name and others have: expected names for "
            "all tensors or for none"
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidTensor(f"tensor {twice!r} is there {names.count(twice)} times, once is needed")
