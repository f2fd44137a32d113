"""What the shadow process finds about migrations, as its parent keeps it."""

from __future__ import annotations

import signal
from typing import cast

from structlog.testing import capture_logs

from gateway.config.load import load_text
from gateway.migration.mirror.shadow_evidence import ShadowEvidence
from gateway.shadow.keeper import Launch, ShadowKeeper
from tests.fakes import settle
from tests.unit.shadow.process_kit import AT_ONCE, Launcher

MIGRATION = """version: 1
listeners: [{{http: 0}}]
upstreams: {{a: {{url: "http://h:1"}}, b: {{url: "http://h:{port}"}}}}
routes: [{{name: r, targets: [{{upstream: a, weight: {weight}}}, {{upstream: b, weight: 0}}]}}]
migrations: {{m: {{route: r, old: a, new: b}}}}
"""


async def test_changed_targets_replace_the_process_of_a_migration() -> None:
    """A changed upstream replaces it without an event; a changed weight does not."""
    launcher = Launcher()
    loaded = load_text(MIGRATION.format(port=2, weight=1))
    shadow_keeper = ShadowKeeper(loaded, 1, cast("Launch", launcher.launch), AT_ONCE)
    evidence = ShadowEvidence(loaded, shadow_keeper)
    assert sorted(shadow_keeper.setup("migration", 1).sockets) == ["m"]
    await shadow_keeper.start()
    with capture_logs() as logs:
        evidence.change(load_text(MIGRATION.format(port=2, weight=5)))
        await settle()
        assert len(launcher.started) == 1
        evidence.change(load_text(MIGRATION.format(port=3, weight=5)))
        for _ in range(10):
            await settle()
    assert len(launcher.started) == 2
    assert launcher.started[1].setup.parts == launcher.started[0].setup.parts
    assert [each["event"] for each in logs] == ["shadow process started"]
    samples = [each for metric in shadow_keeper.collect() for each in metric.samples]
    assert [0] == [each.value for each in samples if each.name == "gateway_shadow_restarts_total"]
    await shadow_keeper.stop()


async def test_a_process_after_a_death_continues_with_the_evidence() -> None:
    """Its guards get what the one before knew; of a migration that was reset, nothing."""
    launcher = Launcher()
    loaded = load_text(MIGRATION.format(port=2, weight=1))
    shadow_keeper = ShadowKeeper(loaded, 1, cast("Launch", launcher.launch), AT_ONCE)
    evidence = ShadowEvidence(loaded, shadow_keeper)
    await shadow_keeper.start()
    for resets in (False, True):
        process = launcher.started[-1]
        assert process.on_document is not None
        process.on_document({"migration": {"m": {"resume": {"compared": 7}}}})
        assert {"resume": {"compared": 7}} == evidence.evidence["m"].document
        if resets:
            evidence.reset_evidence("m")
            assert [{"part": "migration", "document": {"reset": "m"}}] == process.sent[-1:]
        process.over.set_result(-signal.SIGKILL)
        await settle()
    after = {"part": "migration", "document": {"resume": {"m": {"compared": 7}}}}
    first, second, third = (each.sent for each in launcher.started)
    assert ([], after, []) == (first, second[0], third)
    await shadow_keeper.stop()
