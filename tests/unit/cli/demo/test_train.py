"""The committed files of the demo match the current training."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def train() -> ModuleType:
    """Return the training script, or skip where its libraries are missing."""
    pytest.importorskip("onnx", reason="demo/requirements.txt: onnx is not installed")
    pytest.importorskip("sklearn", reason="demo/requirements.txt: scikit-learn is not installed")
    return importlib.import_module("demo.train")


@pytest.fixture(scope="module")
def trained(train: ModuleType) -> Any:
    """Return every model, trained again."""
    return train.train_all()


def test_committed_files_match_the_training(train: ModuleType, trained: Any) -> None:
    """Labels and probabilities match within 1e-4 on all held-out rows; examples are equal."""
    assert not train.differences(trained, train.DEMO)


def test_written_files_match_the_training(train: ModuleType, trained: Any, tmp_path: Path) -> None:
    """Files that the script writes pass its own check."""
    train.write(trained, tmp_path)
    assert not train.differences(trained, tmp_path)


def test_check_detects_a_model_of_another_version(
    train: ModuleType, trained: Any, tmp_path: Path
) -> None:
    """The differences list its labels and probabilities."""
    train.write(trained, tmp_path)
    first, second, _ = trained
    (tmp_path / second.path).write_bytes(first.onnx)
    found = train.differences(trained, tmp_path)
    assert [str(tmp_path / second.path)] * 2 == [line.split()[0] for line in found]


def test_check_detects_changed_examples(train: ModuleType, trained: Any, tmp_path: Path) -> None:
    """Examples must be equal to the byte."""
    train.write(trained, tmp_path)
    (tmp_path / "sentences.json").write_bytes(b"[]")
    expected = [f"{tmp_path / 'sentences.json'} holds other examples"]
    assert expected == train.differences(trained, tmp_path)


def test_split_is_1347_to_450(trained: Any) -> None:
    """A quarter of the 1,797 scans is held out, and 16 sentences of each language."""
    expected = [450, 450, 64]
    assert expected == [len(model.truth) for model in trained]


def test_accuracy_is_as_documented(trained: Any) -> None:
    """About 97 % and 98 % of the scans, and most of the sentences, are correct."""
    first, second, language = (model.accuracy for model in trained)
    assert first == pytest.approx(0.973, abs=0.01)
    assert second == pytest.approx(0.987, abs=0.01)
    assert language >= 0.95


def test_examples_are_not_in_the_training_data(train: ModuleType) -> None:
    """No sentence occurs twice, so none is both held out and trained on."""
    texts = [text for language in train.LANGUAGES for text in train._sentences(language)]
    assert len(texts) == len(set(texts))


def test_the_graph_counts_ngrams_like_the_training(train: ModuleType, trained: Any) -> None:
    """Held-out texts get the probabilities of scikit-learn."""
    language = trained[2]
    session = onnxruntime.InferenceSession(language.onnx, providers=["CPUExecutionProvider"])
    rows = language.held_out["text"]
    shouted = np.array([text.upper() for text in rows], np.object_)
    (plain,) = session.run(["probabilities"], {"text": rows})
    np.testing.assert_allclose(plain, language.probabilities, atol=train.TOLERANCE)
    (loud,) = session.run(["label"], {"text": shouted})
    assert np.mean(loud == language.truth) >= 0.9
