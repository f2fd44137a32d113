"""Conditions on a comparison: `mismatch>0.1%` fails it, `mismatch<0.1%@95%` must be shown.

Parsing and judging; `summary.py` has the metrics.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

from gateway.migration.compare.statistics import calls_needed, upper_bound
from gateway.migration.compare.summary import Summary

_FAIL: Final = re.compile(r"([a-z0-9_]+(?:\.[^<>]+)?)\s*>\s*([^<>@]+)")
_SHOW: Final = re.compile(r"([a-z0-9_]+(?:\.[^<>]+)?)\s*<\s*([^<>@]+)@([^<>@]+)")

RATES: Final = ("mismatch", "structure", "errors", "missing", "refused")
LATENCIES: Final = ("p50_ratio", "p99_ratio", "p99")
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Attributes:
        text: The text that the user wrote.
        metric: "mismatch", "mismatch.OUTPUT", "structure", "errors", "missing", "refused",
            "p50_ratio", "p99_ratio" or "p99".
        limit: A share, a ratio, or seconds.
        confidence: None if the metric itself must not exceed the limit; else the upper bound of the
            rate at this confidence must be below it.
    """

    text: str
    metric: str
    limit: float
    confidence: float | None = None

    def failure(self, summary: Summary) -> str:
        """Return why *summary* fails the condition; "" if it holds."""
        if self.confidence is not None:
            return self._undecided(summary, self.confidence)
        value = self._value(summary)
        if value is None and self.metric in LATENCIES and summary.times_problem:
            return f"{self.metric} is not judged: {summary.times_problem}"
        if value is None:
            return f"{self.metric} is unknown (condition {self.text})"
        if value <= self.limit:
            return ""
        return f"{self.metric} {self._shown(value)} > {self._shown(self.limit)}"

    def _undecided(self, summary: Summary, confidence: float) -> str:
        bad, total = summary.counts(self.metric)
        bound = upper_bound(bad, total, confidence) if total else 1.0
        if bound < self.limit:
            return ""
        needed = calls_needed(self.limit, confidence)
        few = f"; {needed} calls without one are needed" if total < needed else ""
        # The bound is that of one look. Beside that of a guard, it would be a second one.
        return (
            f"{self.metric} is not shown to be below {self.limit:.3%} at {confidence * 100:g}%: "
            f"{bad} of {total} calls{few}"
        )

    def _value(self, summary: Summary) -> float | None:
        if self.metric in LATENCIES:
            return summary.latency(self.metric)
        bad, total = summary.counts(self.metric)
        return bad / total if total else None

    def _shown(self, value: float) -> str:
        if self.metric == "p99":
            return f"{value * 1e3:.4g} ms"
        return f"{value:.4g}" if self.metric in LATENCIES else f"{value:.2%}"


def parse_fail_if(text: str) -> Condition:
    """Parse METRIC>VALUE.

    Raises:
        ValueError: It is none; the text lists the metrics.
    """
    found = _FAIL.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not METRIC>VALUE, such as mismatch>0.1%")
    metric = _metric(found[1], text)
    return Condition(text, metric, _limit(metric, found[2], text))


def parse_fail_unless(text: str) -> Condition:
    """Parse METRIC<VALUE@CONFIDENCE.

    Raises:
        ValueError: It is none, or the metric is not a rate.
    """
    found = _SHOW.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not METRIC<VALUE@CONFIDENCE, such as mismatch<0.1%@95%")
    metric = _metric(found[1], text)
    if metric in LATENCIES:
        raise ValueError(f"{text!r}: {metric} is not a rate; expected {', '.join(RATES)}")
    limit, confidence = _limit(metric, found[2], text), _share(found[3], text)
    if not (0 < limit < 1 and 0 < confidence < 1):
        raise ValueError(f"{text!r}: the limit and the confidence must be between 0% and 100%")
    return Condition(text, metric, limit, confidence)


def _metric(name: str, text: str) -> str:
    if name in (*RATES, *LATENCIES) or name.startswith("mismatch."):
        return name
    metrics = ", ".join((*RATES[:1], "mismatch.OUTPUT", *RATES[1:], *LATENCIES))
    raise ValueError(f"{text!r}: unknown metric {name!r}; expected one of {metrics}")


def _limit(metric: str, value: str, text: str) -> float:
    if metric == "p99":
        found = re.fullmatch(r"\s*([0-9.]+)\s*(us|ms|s)\s*", value)
        if found is None:
            raise ValueError(f"{text!r}: {value.strip()!r} is not a time, such as 200ms")
        return _number(found[1], text) * _UNITS[found[2]]
    return _share(value, text)


def _share(value: str, text: str) -> float:
    value = value.strip()
    if value.endswith("%"):
        return _number(value[:-1], text) / 100
    return _number(value, text)


def _number(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{text!r}: {value!r} is not a number of at least 0")
    return number
