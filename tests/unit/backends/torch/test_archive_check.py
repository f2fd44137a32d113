"""The kind of a PyTorch file, from its contents and without PyTorch."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import pytest

from gateway.backends.torch.archive_check import (
    NotServableError,
    ProgramKind,
    kind_of,
    sample_inputs,
)

EXPORTED = {
    "archive_format": b"pt2",
    "models/model.json": b"{}",
    "data/weights/model_weights_config.json": b'{"config": {}}',
    "data/constants/model_constants_config.json": b'{"config": {}}',
}


def write_archive(folder: Path, files: dict[str, bytes], root: str = "m/") -> Path:
    path = folder / "model"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(root + name, content)
    return path


def config(**payload: object) -> bytes:
    return json.dumps({"config": {"w": {"path_name": "weight_0", **payload}}}).encode()


def test_torchscript_is_recognized_by_its_constants(tmp_path: Path) -> None:
    """It is the format of `torch.jit.save`."""
    files = {"data.pkl": b"", "constants.pkl": b"", "code/m.py": b""}
    assert ProgramKind.TORCHSCRIPT is kind_of(write_archive(tmp_path, files))


@pytest.mark.parametrize(
    ("where", "payload"),
    [
        ("weights", {"use_pickle": False}),
        ("constants", {"use_pickle": True, "path_name": "custom_obj_0"}),
    ],
)
def test_exported_programs_with_plain_tensors_are_served(
    tmp_path: Path, where: str, payload: dict[str, object]
) -> None:
    """Objects of C++ classes are allowed, as in TorchScript."""
    files = {**EXPORTED, f"data/{where}/model_{where}_config.json": config(**payload)}
    assert ProgramKind.EXPORTED is kind_of(write_archive(tmp_path, files))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"data.pkl": b"", "version": b"3"}, "it is a pickle of weights or of a module .torch.save., which can run any code"),
        ({"notes.txt": b""}, "another kind of zip archive"),
        ({"archive_format": b"pt2"}, "has no program 'model'"),
        (
            {"archive_format": b"pt2", "data/aotinductor/model/x.so": b""},
            "has machine code of AOTInductor",
        ),
        ({**EXPORTED, "data/weights/model.pt": b""}, "has a pickle.*: data/weights/model.pt"),
        (
            {**EXPORTED, "data/weights/model_weights_config.json": config(use_pickle=True)},
            "has a pickle, which can run any code: data/weights/model_weights_config.json: w",
        ),
        (
            {
                **EXPORTED,
                "data/weights/model_weights_config.json": config(
                    use_pickle=True, path_name="custom_obj_0"
                ),
            },
            "has a pickle",
        ),
        (
            {
                **EXPORTED,
                "data/constants/model_constants_config.json": config(
                    use_pickle=False, path_name="opaque_obj_0"
                ),
            },
            "has a pickle",
        ),
        ({**EXPORTED, "data/weights/model_weights_config.json": b"["}, "config.json.* is invalid"),
        (
            {**EXPORTED, "data/weights/model_weights_config.json": b'{"config": {"w": 1}}'},
            "is invalid",
        ),
    ],
    ids=[
        "state dict", "something else", "no model", "compiled", "old weights", "pickled weight",
        "pickled object among weights", "opaque", "no JSON", "wrong JSON",
    ],
)  # fmt: skip
def test_archives_with_pickles_are_rejected(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    """Pickles and other archives are rejected by name before they are loaded."""
    with pytest.raises(NotServableError, match=message):
        kind_of(write_archive(tmp_path, files))


def test_an_old_exported_program_is_rejected(tmp_path: Path) -> None:
    """The error for the format before PyTorch 2.8 suggests saving the program again."""
    path = write_archive(tmp_path, {"serialized_exported_program.json": b""}, root="")
    with pytest.raises(NotServableError, match=r"PyTorch 2\.7 and older; save it again"):
        kind_of(path)


def test_a_file_that_is_no_archive_is_rejected(tmp_path: Path) -> None:
    """The error distinguishes a bare pickle from other bytes."""
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(NotServableError, match="it is a pickle, which can run any code; expected"):
        kind_of(path)
    path.write_bytes(b"junk")
    with pytest.raises(NotServableError, match="no zip archive; expected TorchScript"):
        kind_of(path)
    with pytest.raises(FileNotFoundError):
        kind_of(tmp_path / "none")


def test_duplicate_entries_are_rejected(tmp_path: Path) -> None:
    """Two readers might read different ones, so a pickle could hide behind a harmless file."""
    path = tmp_path / "model"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/archive_format", b"pt2")
        archive.writestr("b/archive_format", b"pt2")
    with pytest.raises(NotServableError, match="duplicate entries"):
        kind_of(path)


def test_sample_inputs_are_found(tmp_path: Path) -> None:
    """The pickle that PyTorch would load is returned as bytes; without one the result is None."""
    name = "data/sample_inputs/model.pt"
    assert b"x" == sample_inputs(write_archive(tmp_path, {**EXPORTED, name: b"x"}))
    assert sample_inputs(write_archive(tmp_path, EXPORTED)) is None
