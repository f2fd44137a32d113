from __future__ import annotations

import pytest

from gateway.app.build.route_rules import named_models, ruled_routes
from gateway.cli.explanation import Explanation, explain_call
from gateway.config.load import load_text
from gateway.config.models import Config

ROUTED = """
version: 1
listeners: [{http: 8000}]
upstreams:
  a: {url: "grpc://a:8001"}
  b: {urls: ["http://b:8000", "http://c:8000"]}
models:
  own: {backend: python, options: {callable: "x:y"}}
routes:
  - name: canary
    match: {model: [digits, "text-*"], protocol: oip.http, headers: {x-canary: "yes"}}
    targets: [{upstream: b, model: digits-new, version: 3}]
  - match: {model: digits}
    targets: [{upstream: a, weight: 3}, {upstream: b, weight: 1}]
  - targets: [{model: own}]
"""

UNROUTED = """
version: 1
listeners: [{http: 8000}]
upstreams: {a: {url: "grpc://a:8001"}, b: {url: "grpc://b:8001"}}
models: {"od[d]": {backend: python, options: {callable: "x:y"}}, far: {signature: {inputs: [], outputs: []}}}
"""


def config(text: str) -> Config:
    return load_text(text).config


def explain(text: str, model: str, **headers: str) -> tuple[str | None, tuple[str, ...]]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    found = explain_call(config(text), model=model, version="", protocol="oip.http", headers=names)
    return found.route, found.targets


@pytest.mark.parametrize(
    ("model", "headers", "route"),
    [
        ("digits", {"x_canary": "yes"}, "canary"),
        ("text-1", {"x_canary": "yes"}, "canary"),
        ("digits", {"x_canary": "no"}, "route-2"),
        ("digits", {}, "route-2"),
        ("other", {}, "route-3"),
    ],
)
def test_the_first_matching_route_is_selected(
    model: str, headers: dict[str, str], route: str
) -> None:
    """Model, protocol and headers decide, in the order of the file."""
    assert route == explain(ROUTED, model, **headers)[0]


def test_explain_shows_targets_with_their_share() -> None:
    """Weights become percentages, and addresses are named."""
    expected = (
        "75% to upstream 'a' (oip+grpc://a:8001)",
        "25% to upstream 'b' (oip+http://b:8000, oip+http://c:8000)",
    )
    assert expected == explain(ROUTED, "digits")[1]


def test_explain_shows_renamed_models_and_versions() -> None:
    """The target has its own model name and version."""
    targets = explain(ROUTED, "digits", x_canary="yes")[1]
    assert targets[0].endswith("as model 'digits-new' version '3'")
    assert ("100% to model 'own' of this gateway",) == explain(ROUTED, "other")[1]


POLICIES = """
version: 1
listeners: [{http: 8000}]
upstreams:
  a: {urls: ["grpc://a:8001", "grpc://b:8001"]}
  c: {url: "grpc://c:8001"}
models: {own: {backend: python, options: {callable: "x:y"}}}
routes:
  - match: {model: digits}
    sticky_by: header:x-user
    retry:
      on: [unsent, timeout]
      idempotent: true
      attempts: 3
      per_try_timeout: 200ms
    hedge: {after: 50ms}
    targets: [{upstream: a, weight: 3}, {upstream: c}, {model: own, priority: 1}]
  - match: {model: one}
    targets: [{upstream: c}]
  - retry: {budget: 0}
    targets: [{upstream: c}]
"""


def explained(model: str) -> Explanation:
    return explain_call(config(POLICIES), model=model, version="", protocol="oip.grpc", headers={})


def test_explain_shows_retries_and_their_endpoints() -> None:
    """Reasons, attempts, backoff, endpoints and budget of the route are listed."""
    assert (
        "slow calls have a second attempt after 50ms: 5% at most",
        "if unsent or timeout: up to 3 attempts, after pauses of up to 25 ms to 250 ms",
        "an attempt ends after 200 ms",
        "at another of a:8001, b:8001, c:8001, local/own than the one that failed",
        "at most 20% of the calls, but 3 in any case",
    ) == explained("digits").retries
    assert "at c:8001" == explained("one").retries[1]
    assert ("never",) == explained("other").retries


def test_explain_shows_sticky_keys_and_fallbacks() -> None:
    """The share of a sticky route counts keys; a fallback has its condition."""
    first, _, last = explained("digits").targets
    assert first.startswith("75% of the keys of header:x-user to upstream 'a'")
    assert last.endswith("'own' of this gateway, if no target with a priority below 1 is ready")


def test_default_routes_prefer_local_models() -> None:
    """A model of the gateway matches by its exact name; others are discovered."""
    assert ("od[d]", ("model 'od[d]' of this gateway",)) == explain(UNROUTED, "od[d]")
    expected = ("upstreams", ("the first of a, b that serves the model",))
    assert expected == explain(UNROUTED, "odd")


def test_explain_shows_why_no_route_matches() -> None:
    """The verdicts have the reason of each rule."""
    text = ROUTED.replace("  - targets: [{model: own}]\n", "")
    found = explain_call(config(text), model="x", version="", protocol="oip.grpc", headers={})
    assert found.route is None
    assert ["canary", "canary", "route-2"] == [name for name, _, _ in found.verdicts]
    assert "model 'x' does not match 'digits'" in found.verdicts[2][2]


def test_named_models_are_the_exact_names_of_routes() -> None:
    """Globs name no model, and a signature alone makes no route."""
    assert ["digits", "digits"] == list(named_models(config(ROUTED)))
    assert ["od[d]"] == list(named_models(config(UNROUTED)))
    assert ["od[d]", "upstreams"] == [route.name for route in ruled_routes(config(UNROUTED))]


SHARED = """
version: 1
listeners: [{http: 8000}]
upstreams: {a: {url: "grpc://a:8001"}}
models:
  own: {backend: python, options: {callable: "x:y"}, batching: {}, cache: {max_age: 2m}}
  far: {batching: {max_batch_size: 8}}
"""


def test_explain_shows_batching_and_caching() -> None:
    """The options are those of the called model, local or of an upstream."""
    own = "model 'own' of this gateway, in batches, replies cached for 120 s"
    assert ("own", (own,)) == explain(SHARED, "own")
    far = "the first of a that serves the model, in batches of up to 8 rows"
    assert ("upstreams", (far,)) == explain(SHARED, "far")
    routed = SHARED + "routes: [{targets: [{upstream: a, model: far}]}]"
    sentence = "100% to upstream 'a' (oip+grpc://a:8001) as model 'far', in batches of up to 8 rows"
    assert (sentence,) == explain(routed, "any")[1]
    # The gateway's own model is none of the upstream's, whatever their names.
    not_own = SHARED + "routes: [{targets: [{upstream: a, model: own}]}]"
    assert not explain(not_own, "any")[1][0].endswith("s")
