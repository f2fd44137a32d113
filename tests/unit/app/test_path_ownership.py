"""A path that two protocols of a listener claim has a rule, or is an error that names both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from gateway.api.protocol import HttpBinding, ProtocolSpec
from gateway.app.check import check
from gateway.app.path_ownership import owned_paths, shared_paths
from gateway.config.load import load_text
from gateway.protocols.openai.http.codec import HttpCodec

MODULE = "claiming_protocols"


@pytest.fixture(autouse=True)
def claiming() -> Iterator[None]:
    """Protocols that claim paths of OpenAI's clients, by dotted names."""
    module = ModuleType(MODULE)
    for name, path in (("lists", "/v1/models"), ("vectors", "/v1/embeddings")):
        binding = HttpBinding(codec=HttpCodec, prefixes=(path,))
        spec = ProtocolSpec(name=name, title=name, page="https://example.com", http=binding)
        setattr(module, name.upper(), spec)
    sys.modules[MODULE] = module
    yield
    del sys.modules[MODULE]


def config(*protocols: str, options: str = "{}") -> str:
    return (
        'version: 1\nlisteners: [{http: "127.0.0.1:0", '
        f"protocols: [{', '.join(protocols)}], options: {options}}}]\n"
    )


def test_a_path_that_is_yielded_belongs_to_the_other_protocol() -> None:
    """The list of models has one owner, whatever the order of the protocols."""
    other = f"{MODULE}:LISTS"
    for names in (("openai", other), (other, "openai")):
        loaded = load_text(config(*names))
        assert [] == check(loaded)
        owned = owned_paths(loaded.config.listeners[0])
        assert ("/v1/models",) == owned[other]
        assert "/v1/models" not in owned["openai"]
        assert "/v1/embeddings" in owned["openai"]
    alone = owned_paths(load_text(config("openai")).config.listeners[0])
    assert "/v1/models" in alone["openai"]


def test_a_path_without_a_rule_is_an_error_that_names_both() -> None:
    """Neither protocol is silently the first."""
    (problem,) = check(load_text(config("openai", f"{MODULE}:VECTORS")))
    assert "'/v1/embeddings' belongs to openai and to claiming_protocols:VECTORS" in problem.message


def test_a_path_of_options_may_be_the_refusal_of_chat() -> None:
    """Paths of grps stay as they were, but for those that OpenAI's clients use."""
    paths = {"/v1/chat/completions": [], "/v1/completions": ["path '/v1/completions' belongs to"]}
    for path, expected in paths.items():
        field = "{name: t, datatype: BYTES, place: prompt, shape: [1]}"
        entry = f"{{path: {path}, model: m, body: json, inputs: [{field}], answer: '{{}}'}}"
        options = f"{{grps: {{customized: [{entry}]}}}}"
        problems = check(load_text(config("openai", "grps", options=options)))
        assert len(expected) == len(problems), problems
        assert all(
            text in problem.message for text, problem in zip(expected, problems, strict=True)
        )


def test_a_whole_path_of_options_may_lie_below_another_protocol() -> None:
    """Vertex AI's default routes are below `/v1`; a path that another protocol has is an error."""
    for path, expected in (("/v1/endpoints/1/deployedModels/2:predict", 0), ("/v2", 1)):
        options = f"{{tfs: {{vertex: {{predict: '{path}'}}}}}}"
        problems = check(load_text(config("oip", "openai", "tfs", options=options)))
        assert expected == len(problems), problems
        assert all("belongs to oip and to tfs" in each.message for each in problems)


def test_a_protocol_knows_which_of_its_paths_another_one_yields() -> None:
    """TensorFlow Serving owns the list of models, and shares it only where OpenAI is served."""
    for names, expected in ((("openai", "tfs"), ("/v1/models",)), (("oip", "tfs"), ())):
        assert expected == shared_paths("tfs", load_text(config(*names)).config.listeners[0])


def test_paths_of_a_container_belong_to_one_protocol() -> None:
    """Among all protocols the option decides; beside one that is listed it is an error."""
    text = 'version: 1\nlisteners: [{http: "127.0.0.1:0", options: {oip: {sagemaker: true}}}]\n'
    loaded = load_text(text)
    assert [] == check(loaded)
    owned = owned_paths(loaded.config.listeners[0])
    assert {"/ping", "/invocations"} <= set(owned["oip"])
    assert "/invocations" not in owned["mlflow"]
    problems = check(load_text(config("mlflow", "oip", options="{oip: {sagemaker: true}}")))
    assert any("'/invocations' belongs to oip and to mlflow" in each.message for each in problems)
