"""GrpsMessage as a value, for both its protobuf and its JSON form.

Both forms share the five kinds of data and the Status.  `protobuf/` and `json/` read and write the
bytes; `content.py` and `methods.py` have their meaning as a call.

Source: docs/protocols/grps.md, "4. Messages".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.ir.errors import InvalidTensor
from gateway.ir.limits import check_unique
from gateway.ir.tensors.tensor import Tensor


class ContentFormat(enum.Enum):
    """The member of the message that has its data."""

    BIN_DATA = "bin_data"
    STR_DATA = "str_data"
    GTENSORS = "gtensors"
    NDARRAY = "ndarray"
    GMAP = "gmap"


class Flag(enum.IntEnum):
    """Source: `Status.StatusFlag`; its comment in the old source is wrong."""

    UNKNOWN = 0
    SUCCESS = 1
    FAILURE = 2


@dataclass(frozen=True, slots=True)
class GrpsStatus:
    """The Status of a response.

    Attributes:
        flag: May be a number outside of the enumeration.
    """

    code: int = 0
    msg: str = ""
    flag: int = Flag.UNKNOWN


SUCCESS: Final = GrpsStatus(200, "OK", Flag.SUCCESS)


def failure(code: int, text: str) -> GrpsMessage:
    """Return a response with the Status of a failure, and nothing else."""
    return GrpsMessage(status=GrpsStatus(code, text, Flag.FAILURE))


MapValue = str | bytes | int | float
GMAP_FIELDS: Final = ("s_s", "s_b", "s_i32", "s_i64", "s_f", "s_d")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpsMessage:
    """A message of grps.

    Attributes:
        form: The member with the data; None for no data.
        data: For `BIN_DATA`.
        text: For `STR_DATA`.
        tensors: For `GTENSORS`, in datatypes of grps; for `NDARRAY` the only one, except for the
            marker of protobuf.
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
    """Check that there are tensors, that all or none have names, and that no name repeats.

    Raises:
        InvalidTensor: One of these conditions fails.

    Source: docs/protocols/grps.md, "4. Messages".
    """
    if not tensors:
        raise InvalidTensor("gtensors has no tensors: expected at least one")
    if len(tensors) == 1:
        return
    names = [tensor.name for tensor in tensors]
    if not any(names):
        return
    if not all(names):
        raise InvalidTensor(
            f"tensor number {names.index('')} has no name, others have one: expected names for "
            "all tensors or for none"
        )
    check_unique("tensor", names)
