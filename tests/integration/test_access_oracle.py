"""Random rules, clients and calls on every carrier: the decisions are those of a naive reading."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.access.key_file import KeyFile, save_key_file
from gateway.access.permissions import access_rules, explain_access, identity_of
from gateway.api.access import ExampleCall
from gateway.app import Gateway
from gateway.config.load import LoadedConfig, load_text
from gateway.config.models import Config
from gateway.ir.errors import GatewayError
from gateway.policies.access.rules import Facts, Size
from tests.cases import brpc_oracle
from tests.cases.access_oracle import decision, may_list
from tests.integration.access_kit import NOW, exchange
from tests.integration.asking_kit import ask, running
from tests.integration.test_permissions import CONFIG, INPUTS, NAMED, all_urls

KEYS = {name: f"tg_{name}{'x' * 40}" for name in ("fraud", "score-1", "score-2")}
CLIENTS = {
    "fraud": {"groups": ["finance"], "tier": "gold", "labels": {"team": "a"}},
    "score-1": {"groups": ["finance", "risk"], "labels": {"team": "b"}},
}
MODELS = ("open", "opened", "closed")
SIZE, NONE = Size(32, 128), Size(0, 0)
ROW = tuple(int(value) for value in INPUTS["INPUT0"].reshape(-1))
ONES = (1,) * 16


def random_rule(chance: random.Random, number: int) -> dict[str, Any]:
    """Return a rule with some conditions."""
    conditions: dict[str, Sequence[Any]] = {
        "clients": ["fraud", "score-*", "score-?", "*", ["score-1", "anonymous"]],
        "groups": ["finance", "r*"],
        "tiers": ["gold", "*"],
        "labels": [{"team": "a"}, {"team": ["b", "c"]}],
        "models": ["open", "open*", "closed", "[!c]*", "nothing"],
        "versions": ["", "1"],
        "protocols": ["oip.*", "*.http", ["grps.brpc", "trtis.*"], "graphpipe.http"],
        "listeners": ["main", "other"],
    }
    found: dict[str, Any] = {
        name: chance.choice(values) for name, values in conditions.items() if chance.random() < 0.25
    }
    if chance.random() < 0.3:
        found["effect"] = "deny"
    elif chance.random() < 0.3:
        found["max_elements"] = chance.choice([1, 1000])
    operations = chance.choice(["all", "inference", ["metadata", "index"], "model-repository"])
    return {"name": f"r{number}", "operations": operations, **found}


def configured(seed: int) -> str:
    """Return a configuration with random rules."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    rules = [random_rule(chance, number) for number in range(chance.randint(1, 8))]
    text = CONFIG.replace("security:\n  rules: RULES\n", "")
    security = {"keys": {"file": "keys.yaml"}, "rules": rules}
    return f"{text}clients: {json.dumps(CLIENTS)}\nsecurity: {json.dumps(security)}\n"


def expected(
    config: Config, client: str, operation: str, model: str, protocol: str, version: str = ""
) -> bool:
    """Return the decision of the naive reading, after `explain` agreed with it."""
    size = SIZE if operation == "inference" else NONE
    example = ExampleCall(
        client=client,
        operation=operation,
        model=model,
        version=version,
        protocol=protocol,
        claims={},
        elements=size.elements,
        size_bytes=size.size_bytes,
    )
    facts = Facts(operation, model, version, protocol, "main")
    found = decision(access_rules(config), identity_of(config, example), facts, size)
    explained = explain_access(config, example)
    assert (found.is_allowed, found.rule) == (explained.is_allowed, explained.rule)
    return found.is_allowed


async def refusal(gateway: Gateway, name: str, client: str, model: str) -> str:
    """Infer over a protocol and carrier; return the text of a refusal, "" for a reply."""
    if name == "grps.brpc":
        return await asyncio.to_thread(brpc_refusal, gateway, client, model)
    try:
        url = all_urls(gateway, model)[name]
        await ask(url, model, INPUTS, metadata=(("x-api-key", KEYS[client]),))
    except GatewayError as error:
        return error.message
    return ""


def brpc_refusal(gateway: Gateway, client: str, model: str) -> str:
    """Do so over brpc, with the key as `authentication_data`."""
    pair = [
        brpc_oracle.Tensor(name, brpc_oracle.INT32, (1, 16), values)
        for name, values in (("INPUT0", ROW), ("INPUT1", ONES))
    ]
    message = brpc_oracle.message(model, pair)
    with brpc_oracle.Client(gateway.addresses["main.grps.brpc"]) as connection:
        question = brpc_oracle.Question("Predict", message, credential=KEYS[client])
        _, text, flag = connection.ask(question).status
    return "" if flag == brpc_oracle.SUCCESS else text


async def check_inferences(gateway: Gateway, config: Config) -> set[bool]:
    """Compare inferences of each client on each carrier; return the decisions."""
    seen = set()
    for client in KEYS:
        for name in NAMED:
            texts = []
            for model in (*MODELS, "absent"):
                text = await refusal(gateway, name, client, model)
                if "metadata" in text:  # which this client asks for first
                    assert not expected(config, client, "metadata", model, name), (name, text)
                    continue
                if "not served here" in text and expected(config, client, "metadata", model, name):
                    assert model == "absent"
                    continue
                is_allowed = expected(config, client, "inference", model, name)
                where = (client, name, model, text)
                is_too_large = text.endswith("elements are more than this client may send")
                assert ("may not" in text or is_too_large, *where) == (not is_allowed, *where)
                assert is_allowed is (not text) or model == "absent", where
                seen.add(is_allowed)
                texts += [] if is_allowed or is_too_large else [text]
            assert len({*texts}) <= 1, texts  # one text, whether or not a model exists
    return seen


async def check_listings(gateway: Gateway, config: Config) -> None:
    """Compare the index and the metadata of each client with what it may ask about each model."""
    address = gateway.addresses["main.http"]
    for client, key in KEYS.items():
        headers = {"x-api-key": key}
        reply = await exchange(address, "/v2/repository/index", headers, method="POST", body=b"{}")
        example = ExampleCall(client=client, claims={})
        identity = identity_of(config, example)
        facts = Facts("index", None, "", "oip.http", "main")
        if not may_list(access_rules(config), identity, facts):
            assert 403 == reply.status
        else:
            # An entry is a version of a model.
            assert {(each["name"], each["version"]) for each in json.loads(reply.body)} == {
                (model, "1")
                for model in MODELS
                if expected(config, client, "index", model, "oip.http", "1")
            }
        for model in (*MODELS, "absent"):
            found = await exchange(address, f"/v2/models/{model}", headers)
            is_allowed = expected(config, client, "metadata", model, "oip.http")
            assert (found.status == 403) is not is_allowed


async def test_decisions_on_every_carrier_are_those_of_a_naive_reading(tmp_path: Path) -> None:
    """Inferences, listings and `explain` agree with it, whatever the rules are."""
    file = KeyFile.new()
    for name, key in KEYS.items():
        file = file.added(name, key, NOW)
    save_key_file(tmp_path / "keys.yaml", file)
    seen: set[bool] = set()
    async with running(configured(0), tmp_path) as gateway:
        for seed in range(6):
            loaded: LoadedConfig = load_text(configured(seed), directory=tmp_path)
            await gateway.reload(loaded)
            seen |= await check_inferences(gateway, loaded.config)
            await check_listings(gateway, loaded.config)
    assert {True, False} == seen
