"""Live mirroring of the demo's model: what is compared, found and counted."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.integration import mirror_kit as kit
from tests.integration.asking_kit import running

pytestmark = pytest.mark.timeout(120)

DIFFERENT = [123, 125, 196, 198, 316, 388, 395, 407]


@pytest.fixture(scope="module")
def scans() -> kit.Scans:
    rows: kit.Scans = load_digits().data[::4].astype(np.float32)
    return rows


async def test_the_held_out_scans_differ_in_8_rows(scans: kit.Scans) -> None:
    """A TensorRT v1 client of version 1 is mirrored to version 2: exactly 8 of 450 labels differ."""
    async with kit.servers() as url:
        text = kit.migration_config(url["trtis.http"], url["oip.grpc"])
        async with running(text) as gateway:
            await kit.classify(gateway, "trtis.http", scans)
            found = await kit.evidence(gateway, kit.has_compared(450))
            assert gateway.shadow_keeper is not None
            bad = [each["id"] for each in found["samples"] if each["outcome"] == "mismatch"]
            rows = []
            for sample_id in bad:
                sample = await gateway.shadow_keeper.sample(kit.NAME, sample_id)
                assert sample is not None
                rows.append(int(sample["request_id"].removeprefix("row-")))
    assert found["outcomes"]["match"] == 442
    assert found["outcomes"]["mismatch"] == 8
    assert sorted(rows) == DIFFERENT
    assert kit.balances(found)
