"""Retired keys: they work, one warning each names the replacement, and the schema lacks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.app.build.upstreams import message_limits
from gateway.app.listen.listeners import _limits
from gateway.app.run.announce import log_retired_keys
from gateway.cli.configuration import load_checked
from gateway.cli.validation.config_warnings import warnings
from gateway.config.load import ConfigError, load_text
from gateway.config.retired import RETIRED
from gateway.config.schema import json_schema
from gateway.policies.limits.adaptive.overload import ADAPTIVE_CONCURRENCY
from gateway.policies.limits.fair_share import SHARE, call_rate
from gateway.policies.limits.retry_keys import RETRY
from gateway.routing.balancing.endpoint_keys import outlier_detection_of
from tests.sections import config_of

TODAY = """\
version: 1
listeners:
  - http: 127.0.0.1:8000
    limits:
      body_min_rate_bytes_s: 10
      body_min_rate_grace: 1s
      body_idle_timeout: 2s
      write_min_rate_bytes_s: 20
      write_min_rate_grace: 3s
      write_idle_timeout: 4s
      decompressed_ratio_floor_bytes: 2MiB
      header_line_bytes: 4096
      header_count: 50
      tls_handshake: 5s
    messages:
      json_keys: 9
      model_name_bytes: 99
admin:
  remote_changes: true
upstreams:
  old:
    urls: ["oip+http://127.0.0.1:9000", "oip+http://127.0.0.1:9001"]
    adaptive_concurrency:
      algorithm: aimd
      min: 2
      max: 64
      latency_percentile: 95
      sample: 200ms
      min_rtt_interval: 30s
      jitter: 0.1
    outlier_detection:
      consecutive_timeouts: 3
      max_ejection_time: 30s
      max_ejection_percent: 20
      min_requests: 10
      interval: 5s
    limits:
      resolve_cap: 20s
      pending_by: none
      connection_age: 1m
    messages:
      json_keys: 8
      model_name_bytes: 88
  new: {url: "oip+http://127.0.0.1:9002"}
policies:
  retry:
    elsewhere: false
    min_retries: 1
    backoff:
      base: 10ms
      max: 1s
  sequence_client_header: x-client
routes:
  - name: m
    targets: [{upstream: old}, {upstream: new, weight: 0}]
    share:
      by: address
      rate: 10/s
      burst: 30
    queue_priority_by: header:x-priority
lifecycle:
  reload:
    signal: false
    debounce: 1s
"""
KEYS = 39  # and four of the migration kit


def test_a_file_with_all_retired_keys_loads_with_one_warning_for_each(tmp_path: Path) -> None:
    """`validate` and the log name each key with its line, its column and what stands for it."""
    check_warnings(tmp_path, TODAY, KEYS)


def check_warnings(folder: Path, text: str, keys: int) -> None:
    """Check that a file loads, and that there is one warning for each of its retired keys."""
    path = folder / "gateway.yaml"
    path.write_text(text)
    loaded = load_checked(path)
    found = [one for one in warnings(loaded) if "retired" in one.message]
    assert keys == len(found) == len({one.path for one in found})
    lines = text.splitlines()
    for one in found:
        key = one.path.rsplit(".", 1)[1]
        assert lines[one.position[0] - 1].strip().startswith(f"{key}: ")
        assert one.position[1] == lines[one.position[0] - 1].index(": ") + 3
    with capture_logs() as logs:
        log_retired_keys(loaded)
    assert {("retired key", "warning")} == {(each["event"], each["log_level"]) for each in logs}
    assert [one.entry() for one in found] == [
        {key: each[key] for key in ("line", "column", "path", "message")} for each in logs
    ]


def test_retired_keys_keep_their_effect() -> None:
    """Those of the other adaptive algorithm are the exception: they switch on the one that stays."""
    config = load_text(TODAY).config
    limits = _limits(config.listeners[0])
    assert (10, 1.0, 2.0) == (
        limits.body_min_rate_bytes_s,
        limits.body_min_rate_grace_s,
        limits.body_idle_timeout_s,
    )
    assert (20, 3.0, 4.0) == (
        limits.write_min_rate_bytes_s,
        limits.write_min_rate_grace_s,
        limits.write_idle_timeout_s,
    )
    assert (2 << 20, 4096, 50, 5.0) == (
        limits.decompressed_ratio_floor_bytes,
        limits.header_line_bytes,
        limits.header_count,
        limits.tls_handshake_s,
    )
    for side, expected in ((config.listeners[0], (9, 99)), (config.upstreams["old"], (8, 88))):
        messages = message_limits(side.messages, None)
        assert expected == (messages.json_keys, messages.model_name_bytes)
    retry = RETRY.of(config.policies)
    assert retry is not None
    rules = retry.rules()
    assert (False, 1, 0.01, 1.0) == (rules.elsewhere, rules.least, rules.base_s, rules.max_s)
    share = SHARE.of(config.routes[0])
    assert share is not None
    rate = call_rate(share)
    assert rate is not None
    assert 30 == sum(rate.admit("a") for _ in range(40))
    outliers = outlier_detection_of(config.upstreams["old"])
    assert (5, 3, 30.0) == (
        outliers.consecutive_failures,
        outliers.consecutive_timeouts,
        outliers.max_ejection_s,
    )
    assert ADAPTIVE_CONCURRENCY.of(config.upstreams["old"]) is not False


def test_new_limits_hold_for_requests_and_responses() -> None:
    """A retired key for one of them wins, and the time of handshakes is that of heads."""
    keys = {"min_rate_bytes_s": 9, "idle_timeout": "7s", "header_timeout": "3s"}
    limits = _limits(
        config_of(
            listeners=[{"http": 8000, "limits": {**keys, "write_idle_timeout": "8s"}}]
        ).listeners[0]
    )
    assert (9, 9) == (limits.body_min_rate_bytes_s, limits.write_min_rate_bytes_s)
    assert (7.0, 8.0) == (limits.body_idle_timeout_s, limits.write_idle_timeout_s)
    assert (3.0, 3.0) == (limits.header_timeout_s, limits.tls_handshake_s)


def test_backoff_is_one_duration() -> None:
    """The longest pause is ten times the first one, as the defaults are."""
    retry = RETRY.of(config_of(policies={"retry": {"backoff": "40ms"}}).policies)
    assert retry is not None
    assert (0.04, 0.4) == (retry.backoff.base, round(retry.backoff.max, 9))
    default = RETRY.of(config_of().policies)
    assert default is not None
    assert (0.025, 0.25) == (default.backoff.base, default.backoff.max)
    with pytest.raises(ConfigError, match=r"policies\.retry\.backoff: "):
        config_of(policies={"retry": {"backoff": "soon"}})


def test_one_number_of_failures_counts_for_timeouts_too() -> None:
    """`consecutive_failures` holds for both, unless the retired key is there."""
    upstream = {
        "url": "oip+http://127.0.0.1:9000",
        "outlier_detection": {"consecutive_failures": 2},
    }
    config = config_of(upstreams={"u": upstream})
    assert 2 == outlier_detection_of(config.upstreams["u"]).consecutive_timeouts


def test_the_schema_lists_no_retired_key() -> None:
    """Editors mark them, and the reference has none."""
    schema = json_schema()
    assert RETIRED
    for key in RETIRED:
        *parts, name = key.replace("[]", ".[]").split(".")
        for section in _below(schema, schema, parts):
            assert name not in section.get("properties", {}), key


def _below(schema: dict[str, Any], found: dict[str, Any], parts: list[str]) -> list[dict[str, Any]]:
    if "$ref" in found:
        return _below(schema, schema["$defs"][found["$ref"].rsplit("/", 1)[1]], parts)
    if "anyOf" in found:
        return [each for one in found["anyOf"] for each in _below(schema, one, parts)]
    if not parts:
        return [found]
    if parts[0] == "[]":
        inner = found.get("items", {})
    elif parts[0] == "NAME":
        inner = next(iter(found.get("patternProperties", {}).values()), {})
    else:
        inner = found.get("properties", {}).get(parts[0], {})
    return _below(schema, inner, parts[1:])


def test_a_hint_names_no_retired_key() -> None:
    """Whoever mistypes a key is not sent to one that ends."""
    with pytest.raises(ConfigError) as caught:
        config_of(policies={"retry": {"min_retry": 1}})
    assert "min_retries" not in str(caught.value)
