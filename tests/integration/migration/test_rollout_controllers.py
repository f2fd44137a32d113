"""What Argo Rollouts and Flagger decide by our templates and the verdict on the admin port.

Their decisions are ported line by line, with the names of their sources. Argo Rollouts 1.7:
`metricproviders/webmetric/webmetric.go`, `utils/evaluate/evaluate.go`, `analysis/analysis.go`.
Flagger 1.38: `pkg/controller/{webhook,scheduler,scheduler_hooks}.go`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.integration.migration import cutover_kit as kit
from tests.integration.migration.cutover_kit import migrating, two_servers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPARED = "guards: {mismatch: {below: 20%}, errors: {below: 20%}, latency: {p99: 60s}}"
POLLS = 10_000

Ask = Callable[[str, str], tuple[int, bytes]]
"""Sends a method and a path; returns status and body."""


@dataclass
class AnalysisRun:
    """The analysis of Argo Rollouts by one metric of a template.

    Attributes:
        phase: Of the run: "Running" until it is complete.
    """

    ask: Ask
    metric: dict[str, Any]
    phase: str = "Running"
    counts: dict[str, int] = field(default_factory=dict)
    count: int = 0
    consecutive_error: int = 0

    def measure(self) -> str:
        """Take one measurement; return the phase of the run."""
        phase = self._run()
        self.counts[phase] = self.counts.get(phase, 0) + 1
        if phase == "Error":
            self.consecutive_error += 1
        else:
            self.count += 1
            self.consecutive_error = 0
        self.phase = self._assess_metric_status()
        return self.phase

    def _run(self) -> str:
        """`Provider.Run` and `parseResponse`."""
        web = self.metric["provider"]["web"]
        status, body = self.ask(web.get("method", "GET"), urlsplit(web["url"]).path)
        if status < 200 or status >= 300:
            return "Error"
        assert web["jsonPath"] == "{$.verdict}"
        return self._evaluate_result(json.loads(body)["verdict"])

    def _evaluate_result(self, result: str) -> str:
        """`EvaluateResult`."""
        success = self._eval_condition(result, self.metric["successCondition"])
        failure = self._eval_condition(result, self.metric["failureCondition"])
        if failure:
            return "Failed"
        if not success:  # and no failure
            return "Inconclusive"
        return "Successful"

    def _eval_condition(self, result: str, condition: str) -> bool:
        name, operator, expected = condition.split()
        assert (name, operator) == ("result", "==")
        return result == str(json.loads(expected))

    def _assess_metric_status(self) -> str:
        """`assessMetricStatus`, of a run that nobody terminates."""
        if self.phase != "Running":
            return self.phase
        assessment = self._assess_failure_inconclusive_or_error()
        if assessment:
            return assessment
        if self.count >= self.metric["count"]:
            return "Successful"
        return "Running"

    def _assess_failure_inconclusive_or_error(self) -> str:
        """`assessMetricFailureInconclusiveOrError`."""
        phase = ""
        if self.counts.get("Failed", 0) > self.metric.get("failureLimit", 0):
            phase = "Failed"
        if self.counts.get("Inconclusive", 0) > self.metric.get("inconclusiveLimit", 0):
            phase = "Inconclusive"
        if self.consecutive_error > self.metric.get("consecutiveErrorLimit", 4):
            phase = "Error"
        return phase


ROLLOUT = {"Successful": "goes on", "Inconclusive": "pauses", "Failed": "aborts", "Error": "aborts"}
"""`reconcileStepBasedAnalysisRun` and `reconcileAnalysisRunStatusChanges`, by the phase of a run."""


@dataclass
class Canary:
    """A canary of Flagger that shifts traffic in steps.

    Attributes:
        phase: "Progressing", "Promoting" or "Failed".
        weight: Percentage of the traffic of the new version.
    """

    ask: Ask
    analysis: dict[str, Any]
    phase: str = "Progressing"
    weight: int = 0
    failed_checks: int = 0

    def advance(self) -> str:
        """`advanceCanary`; return the phase."""
        if self.phase != "Progressing":
            return self.phase
        if self._run_rollback_hooks():
            return self._rollback()
        if self.failed_checks >= self.analysis["threshold"]:
            return self._rollback()
        is_start = self.weight == 0
        if not is_start and not self._run_analysis():
            self.failed_checks += 1
            return self.phase
        if not self._run_confirm_hooks("confirm-traffic-increase"):
            return self.phase
        self._run_canary()
        return self.phase

    def _run_canary(self) -> None:
        """`runCanary`."""
        if self.weight < self.analysis["maxWeight"]:
            self.weight = min(100, self.weight + self.analysis["stepWeight"])
            return
        if self._run_confirm_hooks("confirm-promotion"):
            self.phase = "Promoting"

    def _run_analysis(self) -> bool:
        """`runAnalysis`, without metrics."""
        return all(self._call_webhook(hook) for hook in self._hooks("rollout") + self._hooks(""))

    def _run_confirm_hooks(self, kind: str) -> bool:
        """`runConfirmTrafficIncreaseHooks` and `runConfirmPromotionHooks`."""
        return all(self._call_webhook(hook) for hook in self._hooks(kind))

    def _run_rollback_hooks(self) -> bool:
        """`runRollbackHooks`."""
        return any(self._call_webhook(hook) for hook in self._hooks("rollback"))

    def _rollback(self) -> str:
        self.phase, self.weight = "Failed", 0
        return self.phase

    def _hooks(self, kind: str) -> list[dict[str, str]]:
        return [hook for hook in self.analysis["webhooks"] if hook.get("type", "") == kind]

    def _call_webhook(self, hook: dict[str, str]) -> bool:
        """`callWebhook`: any status above 202 is an error."""
        url = urlsplit(hook["url"])
        status, _ = self.ask("POST", f"{url.path}?{url.query}")
        return status <= 202


def argo(ask: Ask) -> AnalysisRun:
    template = yaml.safe_load((DEPLOY / "argo" / "analysis-template.yaml").read_text())
    (metric,) = template["spec"]["metrics"]
    metric["provider"]["web"]["url"] = "http://admin/api/v1/migrations/m/verdict"
    return AnalysisRun(ask, metric)


def flagger(ask: Ask) -> Canary:
    (canary,) = yaml.safe_load_all((DEPLOY / "flagger" / "canary.yaml").read_text())
    analysis = canary["spec"]["analysis"]
    for hook in analysis["webhooks"]:
        hook["url"] = hook["url"].replace("/fraud/", "/m/")
    return Canary(ask, analysis)


class Port:
    """The admin port over one connection, with the number of its requests."""

    def __init__(self, address: str) -> None:
        self._connection = HTTPConnection(address, timeout=60)
        self.polls = 0

    def __call__(self, method: str, path: str) -> tuple[int, bytes]:
        self.polls += 1
        self._connection.request(method, path)
        response = self._connection.getresponse()
        return response.status, response.read()

    def close(self) -> None:
        self._connection.close()


def runs(ask: Ask) -> tuple[str, str]:
    """Return what both controllers come to."""
    run, canary = argo(ask), flagger(ask)
    while run.phase == "Running":
        run.measure()
    for _ in range(30):
        canary.advance()
    outcome = {"Progressing": "pauses", "Promoting": "goes on", "Failed": "aborts"}[canary.phase]
    return ROLLOUT[run.phase], outcome


def without_traffic(port: Port) -> tuple[int, set[str], set[int]]:
    """Return the rollbacks of `POLLS` polls, the outcomes of Argo's runs, and Flagger's weights."""
    rollbacks, outcomes, weights = 0, set(), set()
    canary = flagger(port)
    while port.polls < POLLS:
        run = argo(port)
        while run.phase == "Running":
            run.measure()
            rollbacks += canary.advance() == "Failed"
            weights.add(canary.weight)
        outcomes.add(ROLLOUT[run.phase])
        rollbacks += run.phase in {"Failed", "Error"}
    return rollbacks, outcomes, weights


async def test_controllers_pause_go_on_and_abort(tmp_path: Path) -> None:
    """Without traffic nothing is rolled back and nothing moves; then the guards decide."""
    async with two_servers() as servers, migrating(tmp_path, servers, options=COMPARED) as gateway:
        with closing(Port(gateway.gateway.running.addresses["admin"])) as port:
            found = await asyncio.to_thread(without_traffic, port)
            assert (0, {"pauses"}, {0}) == found
            assert port.polls >= POLLS
            await gateway.do("start")
            async with asyncio.timeout(90):
                while (await gateway.cutover())["state"] != "done":
                    await gateway.ask(20)
            assert (await gateway.get("/verdict"))[1]["verdict"] == "holds"
            assert ("goes on", "goes on") == await asyncio.to_thread(runs, port)
            kit.FAULTS.add("wrong")
            async with asyncio.timeout(90):
                while (await gateway.cutover())["state"] != "rolled_back":
                    await gateway.ask(20)
            assert ("aborts", "aborts") == await asyncio.to_thread(runs, port)
