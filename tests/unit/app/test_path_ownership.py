"""A path that two protocols of a listener claim has a rule, or is an error that names both."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest

from gateway.api.protocol import HttpBinding, ProtocolSpec
from gateway.app.check.check import check
from gateway.app.listen.path_ownership import ProtocolPaths, owned_paths, public_paths
from gateway.app.run.reload import check_restart
from gateway.config.load import ConfigError, load_text
from gateway.protocols.openai.http.codec import HttpCodec
from gateway.wire.heads.path_claims import Passing

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


def paths_of(text: str) -> Mapping[str, ProtocolPaths]:
    loaded = load_text(text)
    return owned_paths(loaded.config.listeners[0], loaded.config.upstreams)


def test_a_path_that_is_yielded_belongs_to_the_other_protocol() -> None:
    """The list of models has one owner, whatever the order of the protocols."""
    other = f"{MODULE}:LISTS"
    for names in (("openai", other), (other, "openai")):
        assert [] == check(load_text(config(*names)))
        owned = paths_of(config(*names))
        assert ("/v1/models",) == owned[other].prefixes
        assert "/v1/models" not in owned["openai"].prefixes
        assert "/v1/embeddings" in owned["openai"].prefixes
    assert "/v1/models" in paths_of(config("openai"))["openai"].prefixes


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
        assert expected == paths_of(config(*names))["tfs"].shared


def test_paths_of_a_container_belong_to_one_protocol() -> None:
    """Among all protocols the option decides; beside one that is listed it is an error."""
    text = 'version: 1\nlisteners: [{http: "127.0.0.1:0", options: {oip: {sagemaker: true}}}]\n'
    loaded = load_text(text)
    assert [] == check(loaded)
    owned = paths_of(text)
    assert {"/ping", "/invocations"} <= set(owned["oip"].prefixes)
    assert "/invocations" not in owned["mlflow"].prefixes
    public = public_paths(loaded.config.listeners[0], owned)
    assert ("/ping" in public, "/invocations" in public) == (True, False)
    (problem,) = check(load_text(config("mlflow", "oip", options="{oip: {sagemaker: true}}")))
    assert (
        "listeners[0].options.oip: path '/ping' belongs to mlflow and to oip; expected only one of "
        "them (protocols or options.oip.sagemaker of the listener)"
    ) in str(problem)


OFFERED = """
version: 1
listeners: [{http: "127.0.0.1:0", passthrough: far%(more)s}]
upstreams: {far: {url: "%(url)s"}}
"""


@pytest.mark.parametrize(
    ("more", "url", "is_offered"),
    [
        ("", "http://far:8080", True),
        (", default_model: digits", "http://far:8080", True),
        ("", "mlflow+http://far:5000", False),
        (", options: {mlflow: {}}", "http://far:8080", False),
        (", protocols: [oip, mlflow]", "http://far:8080", False),
    ],
)
def test_a_server_behind_keeps_paths_without_an_owner(
    more: str, url: str, is_offered: bool
) -> None:
    """MLflow's paths are offered to another server, unless the configuration is about MLflow."""
    text = OFFERED % {"more": more, "url": url}
    loaded = load_text(text)
    assert [] == check(loaded)
    owned = paths_of(text)
    expected = Passing.FOUND if is_offered else Passing.NOTHING
    assert expected is owned["mlflow"].passes["/ping"]
    # A probe without a credential goes to no other server.
    assert is_offered is not ("/ping" in public_paths(loaded.config.listeners[0], owned))


def test_without_a_passthrough_nothing_is_offered() -> None:
    """Each protocol has its paths, and probes need no credential."""
    text = 'version: 1\nlisteners: [{http: "127.0.0.1:0"}]\n'
    owned = paths_of(text)
    assert Passing.NOTHING is owned["mlflow"].passes["/ping"]
    assert "/ping" in public_paths(load_text(text).config.listeners[0], owned)


def test_a_path_of_options_may_lie_below_one_that_is_only_refused() -> None:
    """The longer path has its own protocol."""
    options = "{grps: {customized: [{path: /models/score}]}}"
    text = config("mlflow", "grps", options=options)
    assert [] == check(load_text(text))
    owned = paths_of(text)
    assert "/models" in owned["mlflow"].prefixes
    assert "/models/score" in owned["grps"].prefixes


def test_another_protocol_of_the_server_behind_needs_a_restart() -> None:
    """The paths of a listener are decided at the start."""
    old = load_text(OFFERED % {"more": "", "url": "http://far:8080"})
    check_restart(old.config, load_text(OFFERED % {"more": "", "url": "http://other:8080"}))
    new = load_text(OFFERED % {"more": "", "url": "mlflow+http://far:5000"})
    with pytest.raises(ConfigError, match="passthrough: its upstream has another protocol"):
        check_restart(old.config, new)


OWNERS = {
    "/v1/models": "tfs",
    "/v1/chat/completions": "openai",
    "/invocations": "mlflow",
    "/ping": "mlflow",
    "/models": "torchserve",
}


@pytest.mark.parametrize("protocols", ["", ", protocols: [torchserve, openai, tfs, mlflow, oip]"])
def test_a_listener_of_all_protocols_has_one_owner_of_each_path(protocols: str) -> None:
    """The order of the protocols does not matter; `/models` is shared with MLflow's clients."""
    text = f'version: 1\nlisteners: [{{http: "127.0.0.1:0"{protocols}}}]\n'
    assert [] == check(load_text(text))
    owned = paths_of(text)
    found = {path: name for name, paths in owned.items() for path in paths.prefixes}
    assert OWNERS == {path: found[path] for path in OWNERS}
    assert (("/v1/models",), ("/models",)) == (owned["tfs"].shared, owned["torchserve"].shared)
