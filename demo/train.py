# ruff: noqa: INP001, T201 - a script: it stands in no package and prints its findings
"""Train the models that the wheel ships, or check that the committed files are what training gives.

Here: the data and its split, the three models, their ONNX graphs, the examples of `gateway demo`,
the comparison.  Not here: anything the gateway needs while it runs.  The graphs are written node by
node, so that they stay small, and hold operators that an old ONNX Runtime knows too (opset 17).

    pip install -r demo/requirements.txt
    python demo/train.py            # writes the files below gateway/cli/demo
    python demo/train.py --check    # writes nothing; exit status 1 if the files answer otherwise
"""

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

DEMO: Final = Path(__file__).resolve().parent.parent / "gateway" / "cli" / "demo"
SENTENCES: Final = Path(__file__).resolve().parent / "sentences"
LANGUAGES: Final = ("de", "en", "es", "fr")

HELD_OUT_EVERY: Final = 4
"""Rows 0, 4, 8 ... are held out: 450 of 1,797 scans, 16 of 64 sentences in each language."""

TOLERANCE: Final = 1e-4
"""How far probabilities may lie apart: graphs count in float32, and algebra libraries differ."""

DIGITS: Final = 10
LONGEST_NGRAM: Final = 3
KNOWN_NGRAMS: Final = 300
SENTENCES_SHOWN: Final = 3

# What the Tokenizer operator puts around each text when asked to mark it.
START, END = "\x02", "\x03"

node = helper.make_node
value = helper.make_tensor_value_info

T = TypeVar("T")
Floats = NDArray[np.float64]
Layer = tuple[Floats, Floats]


@dataclass(frozen=True)
class Trained:
    """A trained model with the held-out data that tells whether a file answers like it.

    Attributes:
        model: The model's name.
        version: Its version.
        onnx: The model as an ONNX file.
        held_out: Input that training has not seen, by the input's name; batch axis first.
        truth: The right label of each held-out row.
        labels: The label of each column of *probabilities*.
        probabilities: scikit-learn's own answer on the held-out rows, [rows, labels].
    """

    model: str
    version: int
    onnx: bytes
    held_out: dict[str, NDArray[Any]]
    truth: NDArray[Any]
    labels: NDArray[Any]
    probabilities: Floats

    @property
    def path(self) -> str:
        """The file's place in a model repository."""
        return f"models/{self.model}/{self.version}/model.onnx"

    @property
    def predictions(self) -> NDArray[Any]:
        """The most probable label of each held-out row."""
        chosen: NDArray[Any] = self.labels[self.probabilities.argmax(axis=1)]
        return chosen

    @property
    def accuracy(self) -> float:
        """The share of held-out rows that the model gets right, 0 to 1."""
        return float(np.mean(self.predictions == self.truth))


def main(arguments: Sequence[str]) -> int:
    """Write the files, or compare them with `--check`, and return the exit status."""
    parser = argparse.ArgumentParser(description="Train the models that the wheel ships.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(arguments)
    trained = train_all()
    for model in trained:
        right, rows = round(model.accuracy * len(model.truth)), len(model.truth)
        print(
            f"{model.model} {model.version}: {right} of {rows} held-out rows right "
            f"({model.accuracy:.1%}), {len(model.onnx)} bytes"
        )
    if not options.check:
        write(trained, DEMO)
        return 0
    found = differences(trained, DEMO)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


def train_all() -> tuple[Trained, ...]:
    """Train every model of the demo, with the same result on each call."""
    return (*train_digits(), train_language())


def write(trained: Iterable[Trained], directory: Path) -> None:
    """Write the models and the examples below *directory*."""
    contents = {model.path: model.onnx for model in trained} | examples()
    for name, content in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def differences(trained: Iterable[Trained], directory: Path) -> list[str]:
    """Return how the files in *directory* differ from the result of training.

    The bytes of a model may differ, but not its outputs. The examples may not differ at all.
    """
    found = [
        f"{directory / model.path} {difference}"
        for model in trained
        for difference in _disagreements((directory / model.path).read_bytes(), model)
    ]
    for name, content in examples().items():
        if (directory / name).read_bytes() != content:
            found.append(f"{directory / name} holds other examples")
    return found


def _disagreements(file: bytes, trained: Trained) -> list[str]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    label, probabilities = session.run(["label", "probabilities"], trained.held_out)
    found = []
    if others := int(np.sum(label != trained.predictions)):
        found.append(f"has another label for {others} of {len(label)} held-out rows")
    apart = float(np.abs(probabilities - trained.probabilities).max())
    if not apart <= TOLERANCE:
        found.append(f"has probabilities {apart:.1e} apart, needed {TOLERANCE:.0e}")
    return found


def examples() -> dict[str, bytes]:
    """Return the files of examples: held-out scans, one of each digit, and held-out sentences."""
    first: dict[int, list[float]] = {}
    for pixels, digit in _held_out(zip(*load_digits(return_X_y=True), strict=True)):
        first.setdefault(int(digit), pixels.tolist())
    scans = [{"digit": digit, "pixels": list(map(int, first[digit]))} for digit in sorted(first)]
    sentences = [
        {"language": language, "text": text}
        for language in LANGUAGES
        for text in _held_out(_sentences(language))[:SENTENCES_SHOWN]
    ]
    return {"scans.json": _lines(scans), "sentences.json": _lines(sentences)}


def _lines(entries: Iterable[object]) -> bytes:
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    return f"[\n{lines}\n]\n".encode()


def train_digits() -> tuple[Trained, Trained]:
    """Train both versions of `digits`: logistic regression, then a network with a hidden layer."""
    linear = LogisticRegression(C=0.1, max_iter=2000, tol=1e-8)
    network = MLPClassifier((64,), alpha=0.1, learning_rate_init=3e-3, max_iter=60, random_state=0)
    return (
        _train_digits(1, linear, lambda: [(linear.coef_.T, linear.intercept_)]),
        _train_digits(
            2, network, lambda: list(zip(network.coefs_, network.intercepts_, strict=True))
        ),
    )


def _train_digits(version: int, estimator: Any, layers: Callable[[], list[Layer]]) -> Trained:
    scans, digits = load_digits(return_X_y=True)
    scaler = StandardScaler()
    pipeline = make_pipeline(scaler, estimator)
    with warnings.catch_warnings():
        # The network stops after a fixed number of epochs: short training is repeatable training.
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipeline.fit(_kept(scans), _kept(digits))
    held_out = np.array(_held_out(scans))
    return Trained(
        model="digits",
        version=version,
        onnx=_digits_graph(version, scaler.mean_, scaler.scale_, layers()),
        held_out={"X": held_out.astype(np.float32)},
        truth=np.array(_held_out(digits)),
        labels=pipeline.classes_,
        probabilities=pipeline.predict_proba(held_out),
    )


def _digits_graph(version: int, mean: Floats, scale: Floats, layers: Sequence[Layer]) -> bytes:
    nodes = [node("Sub", ["X", "mean"], ["centred"]), node("Div", ["centred", "scale"], ["scaled"])]
    weights = [
        _weight("mean", mean.astype(np.float32)),
        _weight("scale", scale.astype(np.float32)),
    ]
    result = "scaled"
    for number, (slope, offset) in enumerate(layers, 1):
        if number > 1:
            nodes.append(node("Relu", [result], [f"hidden{number}"]))
            result = f"hidden{number}"
        names = [f"slope{number}", f"offset{number}"]
        weights.append(_weight(names[0], slope.astype(np.float32)))
        weights.append(_weight(names[1], offset.astype(np.float32)))
        nodes.append(node("Gemm", [result, *names], [f"scores{number}"]))
        result = f"scores{number}"
    nodes.append(node("Softmax", [result], ["probabilities"], axis=1))
    # The label of a digit is the number of its column.
    nodes.append(node("ArgMax", [result], ["label"], axis=1, keepdims=0))
    scan = value("X", TensorProto.FLOAT, ["batch", len(mean)])
    label = value("label", TensorProto.INT64, ["batch"])
    return _file("digits", version, nodes, weights, scan, label, DIGITS)


def train_language() -> Trained:
    """Train `language`: logistic regression on how often a sentence has each known n-gram."""
    kept = [(text, name) for name in LANGUAGES for text in _kept(_sentences(name))]
    held_out = [(text, name) for name in LANGUAGES for text in _held_out(_sentences(name))]
    known = _known_ngrams(text for text, _ in kept)
    estimator = LogisticRegression(C=30.0, max_iter=2000, tol=1e-8)
    estimator.fit(_frequencies([text for text, _ in kept], known), [name for _, name in kept])
    texts = [text for text, _ in held_out]
    return Trained(
        model="language",
        version=1,
        onnx=_language_graph(known, estimator.coef_.T, estimator.intercept_),
        held_out={"text": np.array(texts, np.object_)},
        truth=np.array([name for _, name in held_out]),
        labels=estimator.classes_,
        probabilities=estimator.predict_proba(_frequencies(texts, known)),
    )


def _sentences(language: str) -> list[str]:
    return (SENTENCES / f"{language}.txt").read_text(encoding="utf-8").splitlines()


def _ngrams(text: str) -> list[str]:
    # Only ASCII goes to lower case, as in the graph: StringNormalizer's other locales are not
    # installed everywhere.
    marked = START + text.encode().lower().decode() + END
    return [
        marked[start : start + length]
        for length in range(1, LONGEST_NGRAM + 1)
        for start in range(len(marked) - length + 1)
    ]


def _known_ngrams(texts: Iterable[str]) -> list[str]:
    """Return the most frequent n-grams, the short ones first, as TfIdfVectorizer wants them."""
    counts = Counter(ngram for text in texts for ngram in _ngrams(text))
    frequent = sorted(counts, key=lambda ngram: (-counts[ngram], ngram))[:KNOWN_NGRAMS]
    return sorted(frequent, key=lambda ngram: (len(ngram), ngram))


def _frequencies(texts: Sequence[str], known: Sequence[str]) -> Floats:
    """Count the known n-grams of each text and scale each row to length 1; [texts, known]."""
    column = {ngram: number for number, ngram in enumerate(known)}
    counts = np.zeros((len(texts), len(known)))
    for row, text in zip(counts, texts, strict=True):
        for ngram in _ngrams(text):
            if ngram in column:
                row[column[ngram]] += 1
    # A text without a known n-gram stays all zeros; the length of every other is at least 1.
    lengths: Floats = np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)
    return counts / lengths


def _language_graph(known: Sequence[str], slope: Floats, offset: Floats) -> bytes:
    nodes = [
        # The operators for strings have no notion of an empty batch: a guard row goes with every
        # batch and is cut off below.
        node("Concat", ["text", "guard"], ["guarded"], axis=0),
        *_counting_nodes(known),
        node("ReduceL2", ["counts"], ["norm"], axes=[1], keepdims=1),
        node("Max", ["norm", "one"], ["length"]),
        node("Div", ["counts", "length"], ["frequencies"]),
        node("Gemm", ["frequencies", "slope", "offset"], ["guarded_scores"]),
        node("Slice", ["guarded_scores", "first", "last"], ["scores"]),
        node("Softmax", ["scores"], ["probabilities"], axis=1),
        node("ArgMax", ["scores"], ["column"], axis=1, keepdims=0),
        node("Gather", ["languages", "column"], ["label"]),
    ]
    weights = [
        _weight("guard", np.array(["."], np.object_)),
        _weight("languages", np.array(LANGUAGES, np.object_)),
        _weight("first", np.array([0], np.int64)),
        _weight("last", np.array([-1], np.int64)),
        _weight("one", np.ones(1, np.float32)),
        _weight("slope", slope.astype(np.float32)),
        _weight("offset", offset.astype(np.float32)),
    ]
    text = value("text", TensorProto.STRING, ["batch"])
    label = value("label", TensorProto.STRING, ["batch"])
    return _file("language", 1, nodes, weights, text, label, len(LANGUAGES))


def _counting_nodes(known: Sequence[str]) -> list[NodeProto]:
    """Build graph nodes for `_ngrams` and the counting in `_frequencies`."""
    lengths = range(1, LONGEST_NGRAM + 1)
    return [
        node(
            "StringNormalizer",
            ["guarded"],
            ["lower"],
            case_change_action="LOWER",
            is_case_sensitive=0,
            locale="C",
        ),
        node(
            "Tokenizer",
            ["lower"],
            ["characters"],
            domain="com.microsoft",
            mark=1,
            mincharnum=1,
            pad_value="",
            separators=[""],
        ),
        node(
            "TfIdfVectorizer",
            ["characters"],
            ["counts"],
            mode="TF",
            min_gram_length=1,
            max_gram_length=LONGEST_NGRAM,
            max_skip_count=0,
            # Where in the pool the n-grams of each length begin.
            ngram_counts=[sum(len(n) for n in known if len(n) < length) for length in lengths],
            ngram_indexes=list(range(len(known))),
            pool_strings=list("".join(known)),
        ),
    ]


def _kept(rows: Iterable[T]) -> list[T]:
    """Return the training part of *rows*."""
    return [row for number, row in enumerate(rows) if number % HELD_OUT_EVERY != 0]


def _held_out(rows: Iterable[T]) -> list[T]:
    """Return the held-out part of *rows*."""
    return [row for number, row in enumerate(rows) if number % HELD_OUT_EVERY == 0]


def _weight(name: str, values: NDArray[Any]) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(values), name)


def _file(
    name: str,
    version: int,
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto],
    given: ValueInfoProto,
    label: ValueInfoProto,
    labels: int,
) -> bytes:
    probabilities = value("probabilities", TensorProto.FLOAT, ["batch", labels])
    model = helper.make_model(
        helper.make_graph(nodes, name, [given], [label, probabilities], weights),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
        producer_name="tensor-gateway demo/train.py",
        model_version=version,
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
