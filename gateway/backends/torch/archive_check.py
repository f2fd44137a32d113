"""What a file of PyTorch is, told from its contents before PyTorch opens it.

TorchScript and exported programs are programs: who loads one runs what its author wrote, so files
come from the configuration alone. A pickle can do anything at all while it is read, and what
`torch.save` writes is one: pickles are refused, also where they hide inside an archive.
"""

from __future__ import annotations

import enum
import json
import re
import zipfile
from pathlib import Path
from typing import Any

FILE_NAMES = ("model.pt2", "model.pt")

_PICKLE = b"\x80"
_CONFIGS = re.compile(r"data/(weights|constants)/.*_config\.json")
_OLD_PICKLES = re.compile(r"data/(weights|constants)/[^/]*\.pt")
_WAYS = "needed is TorchScript (torch.jit.save) or an exported program (torch.export.save)"


class Kind(enum.Enum):
    """What can be served."""

    TORCHSCRIPT = "torchscript"
    EXPORTED = "exported program"


class NotServableError(ValueError):
    """A file that is no model to be served; the text says what it is."""


def kind_of(path: Path) -> Kind:
    """Return what the file at *path* is.

    Raises:
        NotServableError: It is a pickle, holds one, or is something else.
        OSError: It cannot be read.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            first = file.read(1)
        found = "a pickle, which can run any code" if first == _PICKLE else "no zip archive"
        raise NotServableError(f"it is {found}; {_WAYS}")
    with zipfile.ZipFile(path) as archive:
        # Everything lies in one folder, which is called as whoever saved it liked.
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        if len(names) < len(archive.namelist()):
            raise NotServableError("the archive holds a file twice: readers may differ in which")
        if "constants.pkl" in names:  # PyTorch reads it with an unpickler that knows tensors alone
            return Kind.TORCHSCRIPT
        if "archive_format" in names:
            _check_exported(archive, names)
            return Kind.EXPORTED
        if "data.pkl" in names:
            raise NotServableError(
                f"it is what torch.save writes: a pickle, which can run any code, of weights or "
                f"of a whole module; {_WAYS}"
            )
        if "serialized_exported_program.json" in archive.namelist():
            raise NotServableError(
                "it is an exported program in the form of PyTorch 2.7 and older; save it again "
                "with a newer torch.export.save"
            )
    raise NotServableError(f"it is a zip archive of something else; {_WAYS}")


def sample_inputs(path: Path) -> bytes | None:
    """Return the sample inputs of an exported program, which PyTorch would unpickle."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.partition("/")[2] == "data/sample_inputs/model.pt":
                return archive.read(name)
    return None


def _check_exported(archive: zipfile.ZipFile, names: dict[str, str]) -> None:
    if "models/model.json" not in names:
        compiled = any(name.startswith("data/aotinductor/") for name in names)
        what = "machine code of AOTInductor" if compiled else "no program called 'model'"
        raise NotServableError(f"the archive holds {what}; {_WAYS}")
    for name, entry in names.items():
        if _OLD_PICKLES.fullmatch(name):
            raise _pickled(name)
        if _CONFIGS.fullmatch(name):
            _check_payloads(name, archive.read(entry))


def _check_payloads(name: str, text: bytes) -> None:
    try:
        payloads: dict[str, dict[str, Any]] = json.loads(text)["config"]
        for tensor, payload in payloads.items():
            path = payload["path_name"]
            # Objects of C++ classes are read by PyTorch's own unpickler, as TorchScript is.
            harmless = name.startswith("data/constants/") and path.startswith("custom_obj_")
            if path.startswith("opaque_obj_") or (payload["use_pickle"] and not harmless):
                raise _pickled(f"{name}: {tensor}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, NotServableError):
            raise
        raise NotServableError(f"{name} in the archive is broken") from error


def _pickled(where: str) -> NotServableError:
    return NotServableError(f"the archive holds a pickle, which can run any code: {where}")
