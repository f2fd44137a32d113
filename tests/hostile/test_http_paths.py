"""Hostile paths and methods: names never become files, and only documented paths are served."""

from __future__ import annotations

import pytest

from tests.hostile.judge import Patient, attack, refused
from tests.hostile.wire import GOOD_BODY, head, post

pytestmark = pytest.mark.hostile

NAMES = {
    "dots": "..",
    "dots_up": "../../../../etc/passwd",
    "escaped_dots": "%2e%2e",
    "escaped_up": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "twice_escaped_up": "%252e%252e%252f",
    "overlong_dots": "%c0%ae%c0%ae/",
    "escaped_slash": "simple%2Finfer",
    "backslash": "..\\..\\windows",
    "escaped_backslash": "..%5c..%5c",
    "nul": "simple%00",
    "nul_json": "simple%00.json",
    "newline": "simple%0a",
    "crlf": "simple%0d%0aX-Injected:%201",
    "escape": "%1b[2J",
    "c1": "%c2%9b",
    "ff": "%ff",
    "cut_utf8": "%c3",
    "surrogate": "%ed%a0%80",
    "cut_escape": "simple%",
    "half_escape": "simple%4",
    "bad_escape": "simple%zz",
    "minus_escape": "simple%-1",
    "utf8": "%C3%A9t%C3%A9",
    "bidi": "%e2%80%ae",
    "zero_width": "sim%e2%80%8bple",
    "full_width": "%ef%bd%93imple",
    "upper": "SIMPLE",
    "long": "n" * 256,
    "long_escaped": "%6e" * 256,
    "very_long": "n" * 8000,
    "long_utf8": "%c3%a9" * 128,
    "template": "${env:HOME}",
    "format": "%25s%25n",
    "braces": "{0.__class__}",
    "glob": "*",
    "question": "%3f",
    "semicolon": "simple;x=y",
    "space": "%20simple",
    "plus": "simple+x",
    "quote": "'%22",
    "script": "%3Cscript%3Ealert(1)%3C/script%3E",
    "log4j": "${jndi:ldap://x/a}",
    "sql": "'%20OR%201=1--",
    "url": "http:%2f%2f169.254.169.254%2flatest",
    "private": "__init__",
    "local": "local%2fsimple",
    "unknown": "_unknown",
    "empty": "",
}
ACTIONS = ("", "/infer", "/ready", "/versions/1/infer", "/versions/1")


@pytest.mark.parametrize("action", ACTIONS, ids=["model", "infer", "ready", "version", "v1"])
@pytest.mark.parametrize("name", NAMES)
def test_hostile_model_names_are_rejected(patient: Patient, name: str, action: str) -> None:
    """Any name of no model is rejected, and none injects a header."""
    path = f"/v2/models/{NAMES[name]}{action}"
    data = post(GOOD_BODY, path=path) if "infer" in action else head("GET", path)
    outcome = attack(patient, data)
    assert refused(outcome, frozenset({400, 404, 405, 413, 414, 431})), outcome
    for response in outcome.answers:
        assert response.get("x-injected") is None


@pytest.mark.parametrize("name", [".", "..", "%2e", "%2e%2e", ".%2E"])
@pytest.mark.parametrize("path", ["/v2/models/{}/ready", "/v2/models/simple/versions/{}/ready"])
def test_dot_segments_are_rejected_as_names(patient: Patient, path: str, name: str) -> None:
    """Such models and versions would lead to another path of an upstream."""
    outcome = attack(patient, head("GET", path.format(name)))
    assert refused(outcome, frozenset({400})), outcome


VERSIONS = ("0", "2", "-1", "9" * 30, "9" * 2000, "01", "1.0", "%2e%2e", "latest", "%00", "1%2f1")


@pytest.mark.parametrize("version", VERSIONS, ids=[text[:12] for text in VERSIONS])
def test_hostile_versions_are_rejected(patient: Patient, version: str) -> None:
    """An unknown or invalid version is rejected."""
    path = f"/v2/models/simple/versions/{version}/infer"
    outcome = attack(patient, post(GOOD_BODY, path=path))
    assert refused(outcome, frozenset({400, 404, 413})), outcome


PATHS = (
    "//",
    "/v2/",
    "//v2",
    "/v2//models",
    "/V2",
    "/v1",
    "/v3/models/simple/infer",
    "/v2/../v2",
    "/./v2",
    "/v2/models/../models/simple",
    "/v2/models/simple/",
    "/v2/models/simple/infer/",
    "/v2/models/simple//infer",
    "/v2/models/simple/infer;x",
    "/v2/models/simple/versions",
    "/v2/models/simple/versions/",
    "/v2/models/simple/versions//infer",
    "/v2/models/simple/unload",
    "/v2/models/simple/%69nfer",
    "/%76%32",
    "/v2/health",
    "/v2/health/live/x",
    "/v2%2fhealth%2flive",
    "/metrics",
    "/livez",
    "/readyz",
    "/admin",
    "/debug",
    "/config",
    "/.env",
    "/.git/config",
    "/favicon.ico",
    "/cgi-bin/x",
    "/etc/passwd",
    "/proc/self/environ",
    "/" + "a/" * 4000,
    "/" + "%61" * 2500,
    "*",
    "/v2/repository/models/simple/load",
    "/v2/repository/models/simple/unload",
    "/v2/systemsharedmemory/region/x/register",
    "/v2/cudasharedmemory/status",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/simple/trace/setting",
    "/v2/models/simple/config",
    "/v2/models/stats",
    "/v2/models/simple/generate",
    "/v1/models/simple:predict",
    "/infer",
    "/inference.GRPCInferenceService/ModelInfer",
)


@pytest.mark.needs("readable_faults")
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", PATHS, ids=[path[:40] for path in PATHS])
def test_unknown_paths_are_rejected(patient: Patient, path: str, method: str) -> None:
    """Paths outside Open Inference, and other spellings of its paths, are rejected."""
    data = post(b"{}", path=path) if method == "POST" else head("GET", path)
    outcome = attack(patient, data)
    assert refused(outcome, frozenset({400, 404, 405, 413, 414, 431, 501})), outcome


METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "BREW", "SUBSCRIBE")


@pytest.mark.needs("readable_faults")
@pytest.mark.parametrize("method", METHODS)
def test_unknown_methods_are_rejected(patient: Patient, method: str) -> None:
    """Other methods than the path's are rejected; TRACE echoes nothing."""
    data = head(method, "/v2/models/simple/infer", "X-Echo: here")
    outcome = attack(patient, data)
    assert refused(outcome, frozenset({400, 405, 501})), outcome
    assert not any(b"X-Echo" in response.body for response in outcome.answers)


@pytest.mark.parametrize("path", ["/v2", "/v2/models/simple", "/v2/models/simple/infer", "/x"])
def test_head_response_has_no_body(patient: Patient, path: str) -> None:
    """HEAD gets no body, and the next response belongs to the next request."""
    outcome = attack(patient, head("HEAD", path), head=True)
    assert refused(outcome, frozenset({200, 404, 405})), outcome
