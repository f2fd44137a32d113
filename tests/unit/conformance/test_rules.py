"""Rules as data: what a file says, and what is wrong with it."""

from __future__ import annotations

import pytest
import yaml

from gateway.conformance.rules import (
    AllowedReply,
    is_named,
    known_differences,
    load_rules,
    parse_rules,
)

PROTOCOLS = (
    *("oip+http", "oip+grpc", "tfs+http", "mlflow+http", "seldon+http"),
    *("trtis+http", "grps+http", "torchserve+http", "graphpipe+http"),
    *("tfs+grpc", "seldon+grpc", "trtis+grpc", "grps+grpc", "torchserve+grpc"),
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_rule_has_a_source_and_an_allowed_reply(protocol: str) -> None:
    for rule in load_rules(protocol):
        assert rule.says.endswith("."), rule.id
        assert rule.source, rule.id
        assert all(step.answers for step in rule.steps), rule.id


def test_known_differences_name_rules_or_groups() -> None:
    rules = [rule for protocol in PROTOCOLS for rule in load_rules(protocol)]
    names = {name for rule in rules for name in (rule.id, rule.group)}
    for each in known_differences():
        assert each.server == each.server.lower()
        assert not set(each.rules) - names


def test_a_rule_for_each_value_has_it_in_all_texts() -> None:
    text = (
        "rules: [{id: infer.$kind.json, says: $kind., source: x, each: {kind: [FP32, BYTES]}, "
        "needs: {datatype: $kind}, infer: json, answer: {status: [200, 4xx], form: json}}]"
    )
    rules = parse_rules(yaml.safe_load(text))

    assert [rule.id for rule in rules] == ["infer.fp32.json", "infer.bytes.json"]
    assert [rule.says for rule in rules] == ["FP32.", "BYTES."]
    assert rules[0].group == "infer"
    assert rules[1].needs == {"datatype": "BYTES"}
    assert rules[0].steps[0].request == {"infer": "json"}
    assert rules[0].steps[0].answers == (AllowedReply(status=("200", "4xx"), form="json"),)


def test_a_rule_has_the_values_at_a_place_of_several_lists() -> None:
    text = (
        "rules: [{id: a.$kind, says: A., source: x, each: {kind: [FP32, INT8], type: [10, 2]}, "
        "post: '', message: {$kind: $type}, answer: {status: 200}}]"
    )
    rules = parse_rules(yaml.safe_load(text))

    assert [rule.id for rule in rules] == ["a.fp32", "a.int8"]
    assert [rule.steps[0].request["message"] for rule in rules] == [{"FP32": 10}, {"INT8": 2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{id: a, says: A., source: s, gets: /, answer: {status: 200}}", "unknown keys.*gets"),
        ("{id: a, says: A., source: s, get: /, answer: {state: 200}}", "unknown keys.*state"),
        ("{id: a, says: A., get: /, answer: {status: 200}}", "no.*source"),
        ("{id: a, says: A., source: s, get: /, steps: [{}]}", "beside them"),
        (", ".join(2 * ["{id: a, says: A., source: s, get: /, answer: {status: 200}}"]), "twice"),
    ],
)
def test_a_wrong_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rules(yaml.safe_load(f"rules: [{text}]"))


def test_a_name_is_an_id_or_the_part_before_a_dot() -> None:
    assert is_named("infer.fp16.binary", ["infer"])
    assert is_named("infer.fp16.binary", ["infer.fp16.binary"])
    assert not is_named("infer.fp16.binary", ["infer.fp", "fp16"])


def test_unknown_protocols_have_no_rules() -> None:
    with pytest.raises(LookupError, match=r"no rules of 'openai\+http'"):
        load_rules("openai+http")
