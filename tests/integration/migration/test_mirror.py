"""Live mirroring of the demo's model: its comparisons, findings and counts."""

from __future__ import annotations

from contextlib import AsyncExitStack

import aiohttp
import pytest
import yaml

from gateway.app import Gateway
from tests.integration.asking_kit import running, server_config, urls
from tests.integration.migration import mirror_kit as kit
from tests.integration.migration.digits_kit import digits

pytestmark = pytest.mark.timeout(120)

DIFFERENT = [123, 125, 196, 198, 316, 388, 395, 407]
PROTOCOLS = ["graphpipe.http", "grps.grpc", "grps.http", "oip.grpc", "oip.http", "trtis.grpc"]
PROTOCOLS += ["trtis.http"]


@pytest.fixture(scope="module")
def scans() -> kit.Scans:
    rows: kit.Scans = digits()[::4]
    return rows


async def different_rows(gateway: Gateway, samples: list[dict[str, object]]) -> list[int]:
    """Return the numbers in the request ids of the kept calls that differ."""
    rows = []
    for each in samples:
        if each["outcome"] == "mismatch":
            sample = await kit.evidence_of(gateway).sample(kit.NAME, str(each["id"]))
            assert sample is not None
            rows.append(int(sample["request_id"].removeprefix("row-")))
    return sorted(rows)


async def test_held_out_scans_differ_in_8_rows(scans: kit.Scans) -> None:
    """Exactly 8 of 450 labels differ; the counts balance, and evidence can be reset."""
    async with kit.servers() as url:
        text = kit.migration_config(url["trtis.http"], url["oip.grpc"])
        async with running(text) as gateway:
            await kit.classify(gateway, "trtis.http", scans)
            found = await kit.evidence(gateway, kit.has_compared(450))
            rows = await different_rows(gateway, found["samples"])
            counts = await kit.until(gateway, kit.is_balanced)
            assert kit.total(counts, "gateway_migration_output_mismatches_total") == 16
            assert kit.total(counts, "gateway_migration_latency_seconds") > 0
            kit.evidence_of(gateway).reset_evidence(kit.NAME)
            await kit.evidence(gateway, lambda found: found["compared"] == 0)
            await kit.classify(gateway, "trtis.http", scans[:2])
            anew = await kit.evidence(gateway, kit.has_compared(2))
    assert (found["outcomes"]["match"], found["outcomes"]["mismatch"]) == (442, 8)
    assert rows == DIFFERENT
    assert kit.balances(found)
    assert found["latency"]["new"]["p50"] > 0
    assert kit.total(counts, "gateway_migration_sampled_total") == 450
    assert counts['gateway_migration_samples_total{migration="digits",outcome="mismatch"}'] == 8
    assert anew["compared"] == 2


async def test_every_pair_of_protocols_finds_the_difference(scans: kit.Scans) -> None:
    """A client of each protocol is mirrored to a server of each protocol, with the same result.

    TensorRT v1 has no label without an axis of its own: clients of others see shape [1, 1] for [1].
    """
    some = scans[[0, DIFFERENT[0], 1]]
    async with kit.servers() as url:
        config = yaml.safe_load(kit.migration_config(url["trtis.http"], url["oip.grpc"]))
        migration = config["migrations"].pop(kit.NAME)
        rules = {"label": {"shape": "squeeze"}, "probabilities": {"top_k": 1}}
        migration["compare"] = {"outputs": rules}
        config["routes"] = []
        for number, protocol in enumerate(PROTOCOLS):
            has_version = protocol != "graphpipe.http"
            config["upstreams"][f"u{number}"] = {"url": url[protocol]}
            target = {"upstream": f"u{number}", "model": kit.NAME, "weight": 0}
            config["routes"].append(
                {
                    "name": f"m{number}",
                    "match": {"model": f"m{number}"},
                    "targets": [
                        {"upstream": "legacy", "model": kit.NAME, "version": "1"},
                        {**target, "version": "2"} if has_version else target,
                    ],
                }
            )
            new = f"u{number}/{kit.NAME}" + (":2" if has_version else "")
            config["migrations"][f"m{number}"] = {
                **migration, "route": f"m{number}", "old": f"legacy/{kit.NAME}:1", "new": new,
            }  # fmt: skip
        del config["upstreams"]["fresh"]
        async with running(yaml.safe_dump(config)) as gateway:
            for number in range(len(PROTOCOLS)):
                for protocol in PROTOCOLS:
                    await kit.classify(gateway, protocol, some, model=f"m{number}")
            for number, protocol in enumerate(PROTOCOLS):
                found = await kit.evidence(
                    gateway, kit.has_compared(3 * len(PROTOCOLS)), f"m{number}"
                )
                outcomes = {key: count for key, count in found["outcomes"].items() if count}
                expected = {"match": 2 * len(PROTOCOLS), "mismatch": len(PROTOCOLS)}
                assert outcomes == expected, (protocol, found)


async def test_in_process_models_are_compared(scans: kit.Scans) -> None:
    """A shadow call of an in-process model runs on its copy in the shadow process."""
    config = yaml.safe_load(server_config())
    config["admin"] = {"address": "127.0.0.1:0", "metrics": None}
    config["routes"] = [
        {
            "name": "r",
            "targets": [
                {"model": kit.NAME, "version": "1"},
                {"model": kit.NAME, "version": "2", "weight": 0},
            ],
        }
    ]
    config["migrations"] = {
        kit.NAME: {
            "route": "r",
            "old": "local/digits:1",
            "new": "local/digits:2",
            "sample": {"percent": 100, "per_second": 100000},
            "noise": {"percent": 100},
            "compare": kit.RULES,
        }
    }
    async with running(yaml.safe_dump(config)) as gateway:
        await kit.classify(gateway, "oip.grpc", scans[[0, DIFFERENT[0]]])
        found = await kit.evidence(
            gateway, lambda found: found["noise"] is not None and found["noise"]["compared"] == 2
        )
    assert (found["outcomes"]["match"], found["outcomes"]["mismatch"]) == (1, 1)
    assert found["noise"]["mismatched"] == 0
    assert found["noise"]["tolerance"]["probabilities"] == 0.0


async def test_mirror_changes_no_response(scans: kit.Scans) -> None:
    """A response with a mirror has the same bytes and headers except for its date."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(kit.servers())
        with_mirror = kit.migration_config(url["oip.grpc"], url["oip.http"], more={"capture": None})
        config = yaml.safe_load(with_mirror)
        del config["migrations"]
        mirrored = await stack.enter_async_context(running(with_mirror))
        plain = await stack.enter_async_context(running(yaml.safe_dump(config)))
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def responses(gateway: Gateway, body: object) -> tuple[int, dict[str, str], bytes]:
            address = urls(gateway, kit.NAME)["oip.http"].removeprefix("oip+")
            async with session.post(
                f"{address}/v2/models/{kit.NAME}/infer", json=body, headers={"x-request-id": "r"}
            ) as response:
                headers = {key: value for key, value in response.headers.items() if key != "Date"}
                return response.status, headers, await response.read()

        shape = [1, 64]
        bodies = [
            {"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": scan.tolist()}]}
            for scan in scans[:40]
        ]
        bodies += [{"inputs": []}, {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1]}]}]
        for body in bodies:
            assert await responses(mirrored, body) == await responses(plain, body)
        found = await kit.evidence(mirrored, kit.has_compared(40))
        assert kit.balances(found)


async def test_shadow_calls_are_marked_and_never_mirrored(scans: kit.Scans) -> None:
    """A target that is a gateway with its own mirror does not mirror a shadow call."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(kit.servers())
        second = await stack.enter_async_context(
            running(kit.migration_config(url["oip.grpc"], url["oip.http"], versions=("2", "1")))
        )
        target = urls(second, kit.NAME)["oip.http"]
        text = kit.migration_config(url["oip.grpc"], target, versions=("1", None))
        first = await stack.enter_async_context(running(text))
        await kit.classify(first, "oip.grpc", scans[:5])
        found = await kit.evidence(first, kit.has_compared(5))
        assert found["outcomes"]["match"] == 5
        assert kit.total(await kit.metrics(second), "gateway_migration_sampled_total") == 0
        await kit.classify(second, "oip.grpc", scans[:2])
        await kit.evidence(second, kit.has_compared(2))


async def test_old_target_gets_the_shadow_call_of_the_new_one(scans: kit.Scans) -> None:
    """Evidence names the targets "old" and "new" the same, whichever served the call."""
    async with kit.servers() as url:
        text = kit.migration_config(url["oip.grpc"], url["oip.http"], weights=(0, 1))
        async with running(text) as gateway:
            labels = await kit.classify(gateway, "oip.grpc", scans[DIFFERENT])
            found = await kit.evidence(gateway, kit.has_compared(8))
            source = kit.evidence_of(gateway)
            samples = [await source.sample(kit.NAME, each["id"]) for each in found["samples"]]
    assert found["outcomes"]["mismatch"] == 8
    assert len(labels) == 8
    assert {None if each is None else each["served_by"] for each in samples} == {"new"}


async def test_samples_have_elements_only_with_full_payload(
    scans: kit.Scans, tmp_path: object
) -> None:
    """By default only names and shapes are kept; `payload: full` of the capture keeps all."""
    for capture in (None, {"directory": str(tmp_path), "payload": "full", "min_free": 0}):
        async with kit.servers() as url:
            text = kit.migration_config(url["oip.grpc"], url["oip.http"], more={"capture": capture})
            async with running(text) as gateway:
                await kit.classify(gateway, "oip.grpc", scans[[DIFFERENT[0]]])
                found = await kit.evidence(gateway, kit.has_compared(1))
                sample_id = found["samples"][0]["id"]
                sample = await kit.evidence_of(gateway).sample(kit.NAME, sample_id)
                assert sample is not None
        (pixels,) = sample["inputs"]
        labels = [
            next(each for each in sample[side][0] if each["name"] == "label")
            for side in ("old", "new")
        ]
        assert pixels["shape"] == [1, 64]
        if capture is None:
            assert (pixels["values"], labels[0]["values"]) == (None, None)
        else:
            assert pixels["values"] == scans[DIFFERENT[0]].tolist()
            assert labels[0]["values"] != labels[1]["values"]


async def test_metadata_of_both_targets_is_compared(scans: kit.Scans) -> None:
    """A target with another model is named before any difference of its replies."""
    async with kit.servers() as url:
        config = yaml.safe_load(kit.migration_config(url["oip.grpc"], url["oip.grpc"]))
        config["routes"][0]["match"] = {"model": kit.NAME}
        config["routes"][0]["targets"][1] = {"upstream": "fresh", "model": "language", "weight": 0}
        config["migrations"][kit.NAME]["new"] = "fresh/language"
        async with running(yaml.safe_dump(config)) as gateway:
            found = await kit.evidence(gateway, lambda found: bool(found["metadata"]))
    assert "model 'digits': input 'X' is missing" in found["metadata"]
