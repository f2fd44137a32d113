from __future__ import annotations

import pytest

from gateway.app.check.check import check
from gateway.config.load import ConfigError, is_secret_text, load_text

GOOD = """version: 1
listeners:
  - http: 8000
    protocols: [oip]
    options: {oip: {not_ready_status: 409}}
    passthrough: up
upstreams:
  up: {url: "http://h:8000", options: {dialect: kserve}}
models:
  own: {backend: python, options: {callable: "x:y"}}
  far: {signature: {inputs: [{name: x, datatype: FP32, shape: [-1]}], outputs: []}}
"""


def test_a_valid_file_has_no_problems() -> None:
    """Known names and options are accepted."""
    assert [] == check(load_text(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("[oip]", "[oops]", 4, "unknown protocol 'oops'"),
        ("409", "410", 5, "not_ready_status is '410': expected one of 503, 409"),
        ("{oip:", "{oops:", 5, "unknown protocol 'oops'"),
        (
            "http://h:8000",
            "grpc://h:8000",
            6,
            "'up' uses 'grpc'; passthrough needs an HTTP upstream",
        ),
        ("http://h:8000", "oops+http://h:8000", 8, "unknown protocol 'oops'"),
        ("kserve", "klingon", 8, "dialect is 'klingon': expected one of auto"),
        ("kserve}", "kserve}, hash_by: address", 8, "'hash_by' needs 'balance: hash'"),
        ("python", "cobol", 10, "unknown backend 'cobol'"),
        ("FP32", "FP31", 11, "tensor 'x' has an unknown datatype 'FP31'"),
    ],
)
def test_unknown_names_and_options_are_reported(
    old: str, new: str, line: int, message: str
) -> None:
    """Each problem has its line and the expected values."""
    (problem,) = check(load_text(GOOD.replace(old, new)))
    assert line == problem.position[0]
    assert message in problem.message


def test_a_wrong_url_of_a_store_is_reported_without_its_password() -> None:
    """Neither the text nor the line of the file shows it."""
    pytest.importorskip("redis")
    line = 'quota_store: {url: "redis://:pa:ss@store:port"}'
    (problem,) = check(load_text(f"{GOOD}{line}\n"))
    assert "quota_store.url" == problem.path
    assert "pa:ss" not in problem.message
    assert is_secret_text(line)
    assert not is_secret_text('quota_store: {url: "redis://store:6379/0"}')


OPEN = """version: 1
listeners:
  - http: 127.0.0.1:8000
    grpc: 0.0.0.0:8001
    streams: [{protocol: graphpipe, address: "0.0.0.0:9000"}]
    default_model: m
security: {strict: STRICT}
upstreams: {up: {url: http://h:8000}}
"""


def test_violations_of_strict_security_passed_the_check() -> None:
    """A file that `security.strict` keeps from starting has problems."""
    assert [] == check(load_text(OPEN.replace("STRICT", "false")))
    problems = check(load_text(OPEN.replace("STRICT", "true")))
    assert ["listeners[0].grpc", "listeners[0].streams[0].address"] == [
        problem.path for problem in problems
    ]
    assert "without TLS, which security.strict forbids; add 'tls'" in problems[0].message


@pytest.mark.parametrize("tls", ["{}", "{ca: ca.pem}", "{cert: cert.pem}", "{key: key.pem}"])
def test_tls_of_a_listener_without_its_files_passed_the_check(tls: str) -> None:
    """A listener needs a certificate and its key; an upstream may have neither."""
    text = (
        "version: 1\nlisteners: [{http: 8000, tls: TLS}]\nupstreams: {up: {url: http://h, tls: {}}}"
    )
    (problem,) = check(load_text(text.replace("TLS", tls)))
    assert ("listeners[0].tls", "'cert' or 'key' is missing; a listener needs both") == (
        problem.path,
        problem.message,
    )


@pytest.mark.parametrize("tls", ["{cert: cert.pem}", "{key: key.pem}"])
def test_half_a_client_certificate_passed_the_check(tls: str) -> None:
    """An upstream has a certificate with its key, or neither."""
    text = "version: 1\nlisteners: [{http: 8000}]\nupstreams: {up: {url: http://h, tls: TLS}}"
    (problem,) = check(load_text(text.replace("TLS", tls)))
    assert ("upstreams.up.tls", "'cert' or 'key' is missing; expected both or neither") == (
        problem.path,
        problem.message,
    )


STATEFUL = """
version: 1
listeners: [{http: 8000}]
upstreams: {up: {url: http://h:8000}}
models: {dialog: {signature: {stateful: true, inputs: [], outputs: []}}}
routes:
  - match: {model: MODEL}
    retry: {on: [REASON], idempotent: true}
    targets: [{upstream: up}]
"""


@pytest.mark.parametrize(
    ("model", "reason", "lines"),
    [("dialog", "timeout", [8]), ("dialog", "unsent", []), ("other", "timeout", [])],
)
def test_retries_of_sequences_are_reported(model: str, reason: str, lines: list[int]) -> None:
    """A route to a stateful model may retry unsent calls only, and may not hedge."""
    text = STATEFUL.replace("MODEL", model).replace("REASON", reason)
    problems = check(load_text(text))
    assert lines == [problem.position[0] for problem in problems]
    assert all("holds sequences" in problem.message for problem in problems)
    hedged = text.replace("targets:", "hedge: {after: 20ms}\n    targets:")
    assert (model == "dialog") == bool(check(load_text(hedged)))


@pytest.mark.parametrize(
    ("ready", "found"), [("nowhere", "unknown route 'nowhere'"), ("[]", "no route")]
)
def test_required_routes_must_exist(ready: str, found: str) -> None:
    """The error lists the known routes, default routes included."""
    (problem,) = check(load_text(GOOD + f"lifecycle: {{ready: {ready}}}\n"))
    assert f"{found}; expected 'any', 'all', or a list of own, upstreams" == problem.message
    assert [] == check(load_text(GOOD + "lifecycle: {ready: [own, upstreams]}\n"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "http://h:8000/v2",
            (
                "'oip+http://h:8000/v2' has the path '/v2', but the gateway adds '/v2' and what follows "
                "itself; expected 'oip+http://h:8000'"
            ),
        ),
        (
            "oip+http://h:8000/serving/ns/v2/models/m/infer",
            (
                "'oip+http://h:8000/serving/ns/v2/models/m/infer' has the path "
                "'/serving/ns/v2/models/m/infer', but the gateway adds '/v2' and what follows itself; "
                "expected 'oip+http://h:8000/serving/ns'"
            ),
        ),
        (
            "grpc://h:8001/v2",
            (
                "'oip+grpc://h:8001/v2' has the path '/v2', but 'grpc' has no paths; expected "
                "'oip+grpc://h:8001'"
            ),
        ),
        ("trtis+http://h:8000/api", "expected 'trtis+http://h:8000'"),
        ("http://h:8000/serving/v2x", ""),
        ("graphpipe+http://h:8000/v2", ""),
    ],
)
def test_a_url_with_a_path_of_the_protocol_is_reported(url: str, message: str) -> None:
    """The error has the URL that is expected; a prefix and the URL of a GraphPipe model are fine."""
    text = f"version: 1\nlisteners: [{{http: \":0\"}}]\nupstreams: {{up: {{urls: ['{url}']}}}}\n"
    found = [problem.message for problem in check(load_text(text))]
    assert bool(message) == bool(found)
    assert all(each.endswith(message) for each in found)


def test_an_unsupported_carrier_is_reported() -> None:
    """The error lists the supported carriers."""
    text = GOOD.replace("http://h:8000", "oip+tcp://h:8000").replace("    passthrough: up\n", "")
    (problem,) = check(load_text(text))
    assert "protocol 'oip' does not support 'tcp'; expected http, grpc" == problem.message


@pytest.mark.parametrize(
    ("path", "protocols", "message"),
    [
        ("/v1/score", "[grps, oip]", ""),
        (
            "/v2",
            "[grps, oip]",
            (
                "path '/v2' belongs to oip and to grps; expected only one of them (protocols or "
                "options.grps.customized of the listener)"
            ),
        ),
        ("/v2/chat", "[grps, oip]", "path '/v2/chat' belongs to oip and to grps; expected"),
        ("/v2/chat", "[grps]", ""),
        ("/v2/chat", "[oip]", ""),
        ("/", "[grps]", "customized[0].path is '/': expected a plain path"),
    ],
)
def test_custom_paths_must_not_belong_to_other_protocols(
    path: str, protocols: str, message: str
) -> None:
    """The conflict counts only between protocols of the same listener."""
    text = f"""
version: 1
listeners:
  - http: 8000
    protocols: {protocols}
    options: {{grps: {{customized: [{{path: {path}}}]}}}}
"""
    problems = [problem.message for problem in check(load_text(text))]
    assert bool(message) is bool(problems)
    assert message in "".join(problems)


STREAM = """
version: 1
listeners:
  - streams: [{protocol: graphpipe, address: "unix:/run/g.sock"}]
    default_model: digits
upstreams:
  up: {url: "graphpipe+tcp://h:9000"}
"""


def test_a_stream_of_a_supported_protocol_is_valid() -> None:
    """GraphPipe works over byte streams; its default model may be an option of its own."""
    assert [] == check(load_text(STREAM))
    own = STREAM.replace("default_model: digits", "options: {graphpipe: {default_model: digits}}")
    assert [] == check(load_text(own))


def test_a_brpc_stream_needs_no_default_model() -> None:
    """Its requests name their models."""
    changed = STREAM.replace("protocol: graphpipe", "protocol: grps")
    assert [] == check(load_text(changed.replace("    default_model: digits\n", "")))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("protocol: graphpipe", "protocol: oip", "'oip' does not support byte streams"),
        ("protocol: graphpipe", "protocol: oops", "unknown protocol 'oops'"),
        ("    default_model: digits\n", "", "a graphpipe stream names no model"),
    ],
)
def test_an_invalid_stream_is_reported(old: str, new: str, message: str) -> None:
    """A stream that could serve no request is a problem of the file."""
    (problem,) = check(load_text(STREAM.replace(old, new)))
    assert message in problem.message
    assert 4 == problem.position[0]


BATCHED = """
version: 1
listeners: [{http: 8000}]
models:
  far:
    signature: {inputs: [], outputs: [], max_batch_size: 8}
    batching: {preferred_sizes: [4, 8]}
"""


def test_batch_sizes_within_the_signature_are_valid() -> None:
    """Preferred sizes up to `max_batch_size` are accepted."""
    assert [] == check(load_text(BATCHED))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_batch_size: 8", "max_batch_size: 0", "the model does not batch"),
        ("[4, 8]", "[4, 9]", "preferred size 9 exceeds 'max_batch_size' 8 of the signature"),
    ],
)
def test_batch_sizes_beyond_the_signature_are_reported(old: str, new: str, message: str) -> None:
    """The problem has the path of the batching section."""
    (problem,) = check(load_text(BATCHED.replace(old, new)))
    assert "models.far.batching" == problem.path
    assert message in problem.message


@pytest.mark.parametrize(
    ("retry", "found"),
    [("", True), ("retry: {budget: 0}, ", True), ("retry: {idempotent: true}, ", False)],
)
def test_a_hedge_needs_calls_that_may_run_twice(retry: str, found: bool) -> None:
    """The problem stands at the route, whose own `retry` has to say so."""
    route = f"routes: [{{{retry}targets: [{{upstream: up}}], hedge: {{}}}}]"
    problems = check(load_text(f"{GOOD}policies: {{retry: {{idempotent: true}}}}\n{route}\n"))
    expected = [("routes[0]", True)] if found else []
    assert expected == [(one.path, "'hedge' runs calls twice" in one.message) for one in problems]


@pytest.mark.parametrize(("names", "found"), [("Triton_x", 1), ("[a, triton_*]", 1), ("x-*", 0)])
def test_headers_that_only_triton_may_set_are_not_forwarded(names: str, found: int) -> None:
    """The problem stands at the upstream, once."""
    old = 'url: "http://h:8000", '
    problems = check(load_text(GOOD.replace(old, f"{old}forward_headers: {names}, ")))
    assert found * ["upstreams.up"] == [one.path for one in problems]
    assert all("forward_headers must not contain" in one.message for one in problems)


JWT = "{{name: {0}, issuer: i, audience: a, jwks: k.json}}"
PROXY = "{{name: {0}, addresses: 10.0.0.1, client_header: x-user}}"


@pytest.mark.parametrize(
    ("section", "path"),
    [
        (f"jwt: [{JWT.format('a')}], proxies: [{PROXY.format('a')}]", "security.proxies[0].name"),
        (f"jwt: [{JWT.format('a')}, {JWT.format('a')}]", "security.jwt[1].name"),
        (f"proxies: [{PROXY.format('b')}, {PROXY.format('b')}]", "security.proxies[1].name"),
        (f"jwt: [{JWT.format('cert')}]", "security.jwt[0].name"),
        (f"proxies: [{PROXY.format('cert')}]", "security.proxies[0].name"),
        (f"jwt: [{JWT.format('a')}], proxies: [{PROXY.format('b')}]", None),
    ],
)
def test_clients_of_two_sources_had_the_same_names(section: str, path: str | None) -> None:
    """Issuers, proxies and certificates have names of one space, as their clients have."""
    text = f"version: 1\nlisteners: [{{http: 8000}}]\nsecurity: {{{section}}}\n"
    assert ([] if path is None else [path]) == [one.path for one in check(load_text(text))]


@pytest.mark.parametrize(("name", "is_right"), [("anonymous", 0), ("_other", 0), ("other", 1)])
def test_a_client_had_the_name_of_others(name: str, is_right: int) -> None:
    """Names that stand for several clients are reserved."""
    text = f"version: 1\nlisteners: [{{http: 8000}}]\nclients: {{{name}: {{}}}}\n"
    assert [f"clients.{name}"][is_right:] == [one.path for one in check(load_text(text))]


def test_two_targets_of_a_route_had_one_name() -> None:
    """Weights and cut-overs name targets; an upstream and its model may make the same name."""
    base = "version: 1\nlisteners: [{http: 8000}]\nupstreams: {u: {url: 'http://h'}, u/m: {url: 'http://h'}}\n"
    targets = "[{upstream: u, model: m}, {upstream: u/m}]"
    found = check(load_text(f"{base}routes: [{{targets: {targets}}}]"))
    assert ["routes[0].targets[1]"] == [one.path for one in found]
    found = check(load_text(f"{base}routes: [{{targets: [{{upstream: u}}, {{upstream: u}}]}}]"))
    assert [] == found


def test_a_route_had_the_name_of_one_without_a_name() -> None:
    """Routes without a name are called by their place."""
    base = "version: 1\nlisteners: [{http: 8000}]\nupstreams: {u: {url: 'http://h'}}\n"
    routes = "[{name: route-2, targets: [{upstream: u}]}, {targets: [{upstream: u}]}]"
    with pytest.raises(ConfigError, match="duplicate name 'route-2'"):
        load_text(f"{base}routes: {routes}")
