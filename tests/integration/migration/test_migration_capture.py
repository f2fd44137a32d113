"""`migrations.NAME.capture`: which calls of a migration are recorded, with which contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gateway.app import Gateway
from gateway.ir.tensors.tensor import as_raw
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.sampling import SHADOW_HEADER
from gateway.shadow.draw import draw
from gateway.shadow.records.records import RecordedCall
from tests.integration.asking_kit import ask, running, urls
from tests.integration.migration import mirror_kit as kit
from tests.integration.migration.digits_kit import digits

pytestmark = pytest.mark.timeout(120)

OWN = Path("state", "captures", kit.NAME)


@pytest.fixture(scope="module")
def scans() -> kit.Scans:
    rows: kit.Scans = digits()[::4]
    return rows


def configuration(url: dict[str, str], more: dict[str, Any] | None = None, **migration: Any) -> str:
    """Return a configuration with a second route, to `language`, which no migration has."""
    text = kit.migration_config(
        url["oip.grpc"],
        url["oip.http"],
        more={"state": {"directory": "state"}, **(more or {})},
        **migration,
    )
    config = yaml.safe_load(text)
    config["routes"][0]["match"] = {"model": kit.NAME}
    other = {"name": "other", "match": {"model": "language"}, "targets": [{"upstream": "legacy"}]}
    config["routes"].append(other)
    return yaml.safe_dump(config)


async def language(gateway: Gateway) -> None:
    """Make one call that another route serves."""
    text = np.array(["hello"], dtype=object)
    await ask(urls(gateway, "language")["oip.http"], "language", {"text": text})


def request_ids(calls: list[RecordedCall]) -> list[str]:
    return [each.call.request_id for each in calls]


async def test_capture_records_the_calls_of_its_route(scans: kit.Scans, tmp_path: Path) -> None:
    """Calls of other routes are not recorded; payload and messages follow the capture's keys."""
    capture = {"payload": "hash", "tensors": {"X": "full"}, "min_free": 0}
    async with (
        kit.servers() as url,
        running(configuration(url, capture=capture), tmp_path) as gateway,
    ):
        for protocol in ("oip.http", "oip.grpc", "trtis.http"):
            await kit.classify(gateway, protocol, scans[:3], prefix=protocol)
        await language(gateway)
        found = await kit.until(gateway, lambda found: found["gateway_capture_calls_total"] == 9)
    calls = list(Capture(tmp_path / OWN).calls())
    assert {f"{each}-{row}" for each in ("oip.http", "oip.grpc") for row in range(3)} < set(
        request_ids(calls)
    )
    assert len(calls) == 9
    assert {(each.call.route, each.call.target) for each in calls} == {(kit.NAME, "legacy:1")}
    for call in calls:
        (pixels,) = [each for each in call.tensors if each.side == "input"]
        assert pixels.data is not None
        outputs = [each for each in call.tensors if each.side == "old"]
        assert {(each.data, each.digest is None) for each in outputs} == {(None, False)}
        assert call.wire == ()
    assert Capture(tmp_path / OWN).verify() == (9, [])
    assert found["gateway_capture_sampled_total"] == 9
    assert kit.total(found, "gateway_capture_dropped_total") == 0


async def test_mirror_and_capture_share_the_sampling_draw(scans: kit.Scans, tmp_path: Path) -> None:
    """Exactly the calls with a draw below the share are recorded; all of them are mirrored."""
    sample = {"percent": 40, "per_second": 100_000, "first": 0}
    capture = {"percent": 15, "min_free": 0}
    async with kit.servers() as url:
        text = configuration(url, sample=sample, capture=capture)
        async with running(text, tmp_path) as gateway:
            await kit.classify(gateway, "oip.grpc", scans[:60])
            counts = await kit.until(
                gateway,
                lambda found: (
                    kit.is_balanced(found)
                    and found["gateway_capture_sampled_total"]
                    == found["gateway_capture_calls_total"]
                ),
            )
    draws = {f"row-{row}": draw(f"row-{row}", kit.NAME) for row in range(60)}
    expected = [name for name, number in draws.items() if number < 0.15]
    assert expected
    assert sorted(expected) == sorted(request_ids(list(Capture(tmp_path / OWN).calls())))
    mirrored = sum(number < 0.4 for number in draws.values())
    assert kit.total(counts, "gateway_migration_samples_total") == mirrored > len(expected)


async def test_captures_of_gateway_and_migration_are_independent(
    scans: kit.Scans, tmp_path: Path
) -> None:
    """`capture` records all calls, and the migration its own with messages."""
    more = {"capture": {"directory": "all", "min_free": 0}}
    own = {"directory": "own", "payload": "full", "wire": True, "min_free": 0}
    async with kit.servers() as url:
        text = configuration(url, more, capture=own)
        async with running(text, tmp_path) as gateway:
            await kit.classify(gateway, "oip.http", scans[:4])
            await language(gateway)
            await kit.until(gateway, lambda found: found["gateway_capture_calls_total"] == 9)
            sample = await kit.evidence(gateway, lambda found: len(found["samples"]) > 0)
            sample_document = await kit.evidence_of(gateway).sample(
                kit.NAME, sample["samples"][0]["id"]
            )
    everything = list(Capture(tmp_path / "all").calls())
    assert sorted(each.call.route for each in everything) == [*[kit.NAME] * 4, "other"]
    assert {each.missing for each in everything} == {"payload not recorded"}
    calls = list(Capture(tmp_path / "own").calls())
    assert len(calls) == 4
    for call in calls:
        assert call.missing == ""
        assert [each.side for each in call.wire] == ["request", "reply"]
        (pixels,) = call.request().inputs
        row = int(call.call.request_id.removeprefix("row-"))
        assert bytes(as_raw(pixels)) == scans[row].tobytes()
    # The own capture also says what may be shown.
    assert sample_document is not None
    assert sample_document["inputs"][0]["values"] is not None


async def test_migration_without_a_new_target_only_records(
    scans: kit.Scans, tmp_path: Path
) -> None:
    """Nothing is compared; shadow calls of other gateways are not recorded."""
    async with kit.servers() as url:
        config = yaml.safe_load(configuration(url))
        migration = config["migrations"][kit.NAME]
        for key in ("new", "sample"):
            del migration[key]
        migration["capture"] = {"min_free": 0}
        async with running(yaml.safe_dump(config), tmp_path) as gateway:
            await kit.classify(gateway, "oip.grpc", scans[:2])
            config["upstreams"]["legacy"] = {
                "url": urls(gateway, kit.NAME)["oip.http"],
                "headers": {SHADOW_HEADER: "1"},
            }
            del config["migrations"]
            async with running(yaml.safe_dump(config)) as marking:
                await kit.classify(marking, "oip.grpc", scans[:2], prefix="shadow")
            found = await kit.until(
                gateway, lambda found: found["gateway_capture_calls_total"] == 2
            )
    assert sorted(request_ids(list(Capture(tmp_path / OWN).calls()))) == ["row-0", "row-1"]
    assert found["gateway_capture_sampled_total"] == 2
    assert not any(name.startswith("gateway_migration") for name in found)
