"""`models.NAME.protocols`: each mistake has its key, its line and its column."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.app.build.declarations import read_declarations
from gateway.app.check.check import check
from gateway.config.load import load_text
from gateway.ir.text_tasks import TextForms
from gateway.ir.values.untyped import RowsForm
from tests.integration.openai_models import GOLDEN

pytest.importorskip("tokenizers")

HEAD = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
upstreams: {one: {url: "oip+http://127.0.0.1:1"}}
models:
  m:
    protocols:
      openai:
"""
FILE = "tokenizer: tokenizer.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer, and a file that is none."""
    shutil.copy(GOLDEN / "tokenizer.json", tmp_path)
    (tmp_path / "other.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("section", "key", "text"),
    [
        ("embeddings: {flavour: 1}", "embeddings.flavour", "has no key 'flavour'"),
        ("chat: {}", "chat", "has no key 'chat'"),
        ("embeddings: []", "embeddings", "expected a mapping"),
        ("embeddings: {tokenizer: no.json}", "embeddings.tokenizer", "cannot be read"),
        ("embeddings: {tokenizer: other.json}", "embeddings.tokenizer", "no tokenizer.json"),
        ("embeddings: {pooling: mean}", "embeddings.pooling", "expected 'tokenizer'"),
        ("embeddings: {max_tokens: 4}", "embeddings.max_tokens", "expected 'tokenizer'"),
        (f"embeddings: {{{FILE}, max_tokens: 0}}", "embeddings.max_tokens", "a number from 1"),
        (f"embeddings: {{{FILE}, pooling: sum}}", "embeddings.pooling", "one of none, mean"),
        (f"embeddings: {{{FILE}, padding: 8, max_tokens: 9}}", "embeddings.padding", "at least"),
        (f"embeddings: {{{FILE}, inputs: {{x: y}}}}", "embeddings.inputs", "ids, mask, types"),
        ("embeddings: {dimensions: 4}", "embeddings.dimensions", "true or false"),
        ("embeddings: {dimensions: [0]}", "embeddings.dimensions", "a number from 1"),
        ("embeddings: {prefixes: {x: y}}", "embeddings.prefixes", "query, passage"),
        ("embeddings: {default_prefix: query}", "embeddings.default_prefix", "'prefixes'"),
        ("rerank: {pair: '{query}'}", "rerank.pair", "each of them once"),
        ("rerank: {pair: '{query}{document}', document: d}", "rerank.pair", "'document'"),
        (f"rerank: {{pair: '{{query}}{{document}}', {FILE}}}", "rerank.pair", "'tokenizer'"),
        ("rerank: {column: -1}", "rerank.column", "a number from 0"),
        ("rerank: {score: relu}", "rerank.score", "one of none, sigmoid"),
        ("completions: {map: [stop]}", "completions.map", "a mapping"),
        ("completions: {ignore: x}", "completions.ignore", "a list"),
    ],
)
def test_a_mistake_has_its_key_and_its_place(
    folder: Path, section: str, key: str, text: str
) -> None:
    """The problem is that of the key, on its line."""
    loaded = load_text(f"{HEAD}        {section}\n", directory=folder)
    (problem,) = check(loaded)
    assert text in problem.message
    assert f"models.m.protocols.openai.{key}" == problem.path
    line, column = problem.position
    assert 9 == line
    assert column > 8


def test_a_protocol_that_needs_no_declaration_is_named(folder: Path) -> None:
    """Only a protocol that must be told something has this place."""
    text = HEAD.replace("openai:", "oip: {}").rstrip()
    (problem,) = check(load_text(text, directory=folder))
    assert "'oip' needs no declaration" in problem.message


RENAMED = """
version: 1
listeners: [{http: "127.0.0.1:0", default_model: house}]
upstreams: {one: {url: "oip+http://127.0.0.1:1"}}
routes:
  - {name: own, match: {model: [flat]}, targets: [{upstream: one, model: own}]}
  - {name: both, match: {model: [flat, house]}, targets: [{upstream: one, model: shared}]}
  - {name: default, targets: [{upstream: one, weight: 0}, {upstream: one, model: new}]}
models:
  house: {protocols: {mlflow: {column_names: [a, b]}, tfs: {labels: {stable: 1}}}}
  flat: {protocols: {mlflow: {column_names: [c, d]}}}
  own: {protocols: {mlflow: {columns: each}}}
"""


def test_columns_hold_for_the_name_at_a_target(tmp_path: Path) -> None:
    """Else the columns of a client in another order would be taken by position."""
    found = read_declarations(load_text(RENAMED).config, tmp_path)
    assert found["new"] == found["house"]
    assert found.keys() == {"house", "flat", "own", "new"}
    assert found["own"]["mlflow"] == RowsForm(is_matrix=False)


def test_a_declaration_is_read_with_its_files(folder: Path) -> None:
    """Every key has its place, and the text of the tokenizer is in the declaration."""
    section = f"""
        embeddings:
          {{{FILE}, max_tokens: 8, truncate: false, padding: 8, padding_side: left,
           inputs: {{ids: i, mask: m}}, pooling: last, normalize: true, dimensions: [4, 8],
           prefixes: {{query: "q: "}}, default_prefix: query, max_inputs: 3, max_total_tokens: 9}}
        rerank: {{query: q, document: d, output: o, column: 1, score: softmax, max_documents: 5}}
        completions: {{input: i, output: o, map: {{stop: s}}, sampling: j, parameters: [seed]}}
"""
    loaded = load_text(HEAD.rstrip() + section, directory=folder)
    assert [] == check(loaded)
    found = read_declarations(loaded.config, folder)["m"]["openai"]
    assert isinstance(found, TextForms)
    assert found.embeddings is not None
    assert found.rerank is not None
    assert found.completions is not None
    tokenizer = found.embeddings.tokenizer
    assert tokenizer is not None
    assert (folder / "tokenizer.json").read_text() == tokenizer.text
    assert ("i", "m", 8, 8, True, False, 9) == (
        tokenizer.ids,
        tokenizer.mask,
        tokenizer.max_tokens,
        tokenizer.fixed_length,
        tokenizer.pads_left,
        tokenizer.truncate,
        tokenizer.max_total_tokens,
    )
    assert ((4, 8), {"query": "q: "}) == (found.embeddings.dimensions, found.embeddings.prefixes)
    assert (1, "softmax", 5) == (
        found.rerank.column,
        found.rerank.score,
        found.rerank.max_documents,
    )
    assert ({"stop": "s"}, ("seed",)) == (found.completions.names, found.completions.parameters)
