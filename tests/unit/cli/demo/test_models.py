"""The committed models of the demo in ONNX Runtime: names, types, shapes, outputs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import gateway.cli.demo
from gateway.cli.demo.samples import load_scans, load_sentences

MODELS = Path(gateway.cli.demo.__file__).parent / "models"

Port = tuple[str, str, list[str | int]]

DIGITS_IN: list[Port] = [("X", "tensor(float)", ["batch", 64])]
DIGITS_OUT: list[Port] = [
    ("label", "tensor(int64)", ["batch"]),
    ("probabilities", "tensor(float)", ["batch", 10]),
]
LANGUAGE_IN: list[Port] = [("text", "tensor(string)", ["batch"])]
LANGUAGE_OUT: list[Port] = [
    ("label", "tensor(string)", ["batch"]),
    ("probabilities", "tensor(float)", ["batch", 4]),
]


@dataclass(frozen=True)
class Case:
    """One committed model and its documented properties."""

    model: str
    version: int
    inputs: list[Port]
    outputs: list[Port]
    least_bytes: int
    most_bytes: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.version}"


CASES = [
    Case("digits", 1, DIGITS_IN, DIGITS_OUT, 3_000, 5_000),
    Case("digits", 2, DIGITS_IN, DIGITS_OUT, 19_000, 23_000),
    Case("language", 1, LANGUAGE_IN, LANGUAGE_OUT, 6_000, 12_000),
]
EVERY_MODEL = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
EVERY_DIGITS = pytest.mark.parametrize("version", [1, 2])


def path_of(model: str, version: int) -> Path:
    return MODELS / model / str(version) / "model.onnx"


def session_of(model: str, version: int) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path_of(model, version), providers=["CPUExecutionProvider"])


def classify(model: str, version: int, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    session = session_of(model, version)
    name = session.get_inputs()[0].name
    label, probabilities = session.run(["label", "probabilities"], {name: values})
    return label, probabilities


def pixels() -> NDArray[np.float32]:
    return np.array([scan.pixels for scan in load_scans()], np.float32)


def texts(*values: str) -> NDArray[np.object_]:
    return np.array(values, np.object_)


def test_the_repository_has_only_these_models() -> None:
    """Every model file below `models` is listed in this test."""
    expected = {path_of(case.model, case.version) for case in CASES}
    assert expected == set(MODELS.rglob("*.onnx"))


@EVERY_MODEL
def test_inputs_and_outputs_are_as_documented(case: Case) -> None:
    """Names, types and shapes match the documentation."""
    session = session_of(case.model, case.version)
    assert case.inputs == [(port.name, port.type, port.shape) for port in session.get_inputs()]
    assert case.outputs == [(port.name, port.type, port.shape) for port in session.get_outputs()]


@EVERY_MODEL
def test_the_file_has_its_name_and_version(case: Case) -> None:
    """The graph has the name of the model, and the file its version."""
    about = session_of(case.model, case.version).get_modelmeta()
    assert (case.model, case.version) == (about.graph_name, about.version)


@EVERY_MODEL
def test_the_file_is_small(case: Case) -> None:
    """A model adds only some ten kilobytes to the wheel."""
    size = path_of(case.model, case.version).stat().st_size
    assert case.least_bytes <= size <= case.most_bytes


@EVERY_DIGITS
def test_digits_classifies_every_scan(version: int) -> None:
    """Both versions classify all ten scans of the demo correctly, in one batch."""
    label, _ = classify("digits", version, pixels())
    expected = np.dtype(np.int64)
    assert expected == label.dtype
    assert [scan.digit for scan in load_scans()] == label.tolist()


@EVERY_DIGITS
def test_digits_has_the_same_output_alone_and_in_a_batch(version: int) -> None:
    """Probabilities do not depend on the batch, and their sum is 1."""
    _, together = classify("digits", version, pixels())
    alone = np.concatenate([classify("digits", version, row[None])[1] for row in pixels()])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-5)


def test_versions_of_digits_differ() -> None:
    """No scan has the same probabilities in both versions, so tests detect a mix-up."""
    _, first = classify("digits", 1, pixels())
    _, second = classify("digits", 2, pixels())
    assert np.all(np.abs(first - second).max(axis=1) > 1e-4)


@EVERY_DIGITS
def test_digits_accepts_an_empty_batch(version: int) -> None:
    """The outputs have no label and no row of probabilities."""
    label, probabilities = classify("digits", version, pixels()[:0])
    expected = ((0,), (0, 10))
    assert expected == (label.shape, probabilities.shape)


def test_language_classifies_every_sentence() -> None:
    """All sentences of the demo get their correct language, as strings."""
    sentences = load_sentences()
    label, probabilities = classify("language", 1, texts(*(s.text for s in sentences)))
    assert [sentence.language for sentence in sentences] == label.tolist()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)


def test_language_has_the_same_output_alone_and_in_a_batch() -> None:
    """Longer and shorter sentences of a batch do not change the probabilities."""
    values = texts("Wie geht es dir heute?", "Merci !", "")
    _, together = classify("language", 1, values)
    alone = np.concatenate([classify("language", 1, values[i : i + 1])[1] for i in range(3)])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_language_ignores_the_case_of_ascii() -> None:
    """Capitals change no probability in text without accents."""
    _, small = classify("language", 1, texts("where did you leave the key?"))
    _, great = classify("language", 1, texts("WHERE DID YOU LEAVE THE KEY?"))
    np.testing.assert_array_equal(small, great)


def test_language_accepts_an_empty_batch() -> None:
    """The outputs have no label and no row of probabilities."""
    label, probabilities = classify("language", 1, texts())
    expected = ((0,), (0, 4))
    assert expected == (label.shape, probabilities.shape)


@pytest.mark.parametrize("text", ["", " ", "\n", "漢字", "😀" * 50, "\x00\x01", "x" * 10_000])
def test_language_accepts_any_text(text: str) -> None:
    """Text in an unknown language still gets a label and finite probabilities."""
    label, probabilities = classify("language", 1, texts(text))
    assert label[0] in {"de", "en", "es", "fr"}
    assert np.isfinite(probabilities).all()
