"""Checks the contents of a PyTorch file before PyTorch opens it.

Loading TorchScript or an exported program runs its author's code, so only the configuration names
files. Reading a pickle can run any code, and `torch.save` writes pickles: they are rejected, also
inside archives.
"""

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
_EXPECTED = "expected TorchScript (torch.jit.save) or an exported program (torch.export.save)"


class ProgramKind(enum.Enum):
    """The file formats that the backend serves."""

    TORCHSCRIPT = "torchscript"
    EXPORTED = "exported program"


class NotServableError(ValueError):
    """The backend cannot serve the file; the text is the reason."""


def kind_of(path: Path) -> ProgramKind:
    """Return the format of the file at *path*.

    Raises:
        NotServableError: The file is or contains a pickle, or has another format.
        OSError: The file cannot be read.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            first = file.read(1)
        kind = "a pickle, which can run any code" if first == _PICKLE else "no zip archive"
        raise NotServableError(f"it is {kind}; {_EXPECTED}")
    with zipfile.ZipFile(path) as archive:
        # All entries are in one folder of any name.
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        if len(names) < len(archive.namelist()):
            raise NotServableError(
                "the archive has duplicate entries, which readers resolve differently"
            )
        if "constants.pkl" in names:  # PyTorch's reader of this pickle accepts only tensors
            return ProgramKind.TORCHSCRIPT
        if "archive_format" in names:
            _check_exported(archive, names)
            return ProgramKind.EXPORTED
        if "data.pkl" in names:
            raise NotServableError(
                "it is a pickle of weights or of a module (torch.save), which can run any code; "
                f"{_EXPECTED}"
            )
        if "serialized_exported_program.json" in archive.namelist():
            raise NotServableError(
                "it is an exported program in the format of PyTorch 2.7 and older; save it again "
                "with a newer torch.export.save"
            )
    raise NotServableError(f"it is another kind of zip archive; {_EXPECTED}")


def sample_inputs(path: Path) -> bytes | None:
    """Return the sample inputs of an exported program; PyTorch would unpickle them."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.partition("/")[2] == "data/sample_inputs/model.pt":
                return archive.read(name)
    return None


def _check_exported(archive: zipfile.ZipFile, names: dict[str, str]) -> None:
    if "models/model.json" not in names:
        compiled = any(name.startswith("data/aotinductor/") for name in names)
        content = "machine code of AOTInductor" if compiled else "no program 'model'"
        raise NotServableError(f"the archive has {content}; {_EXPECTED}")
    for name, entry in names.items():
        if _OLD_PICKLES.fullmatch(name):
            raise _pickle_error(name)
        if _CONFIGS.fullmatch(name):
            _check_payloads(name, archive.read(entry))


def _check_payloads(name: str, text: bytes) -> None:
    try:
        payloads: dict[str, dict[str, Any]] = json.loads(text)["config"]
        for tensor, payload in payloads.items():
            path = payload["path_name"]
            # PyTorch reads objects of C++ classes with the safe unpickler of TorchScript.
            is_safe = name.startswith("data/constants/") and path.startswith("custom_obj_")
            if path.startswith("opaque_obj_") or (payload["use_pickle"] and not is_safe):
                raise _pickle_error(f"{name}: {tensor}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, NotServableError):
            raise
        raise NotServableError(f"{name} in the archive is invalid") from error


def _pickle_error(name: str) -> NotServableError:
    return NotServableError(f"the archive has a pickle, which can run any code: {name}")
