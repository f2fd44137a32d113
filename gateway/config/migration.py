"""Recording and comparison in the configuration file: `capture` and `migrations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from gateway.config.fields import Duration, Name, Names, Share, Size, Text
from gateway.config.signatures import Model

PayloadChoice = Literal["none", "hash", "full"]

_MIB = 1 << 20


class CaptureConfig(Model):
    """Recording of inferences with their replies, for `gateway capture` and `gateway replay`."""

    directory: Text
    """Directory of the files, relative to the configuration file. Only the user of the gateway can
    read it."""
    enabled: bool = True
    """Whether recording begins with the gateway. `gateway capture start` and `stop` change it while
    the gateway runs. Default: `true`."""
    percent: float = Field(100.0, gt=0, le=100)
    """Share of the inferences to record. A sequence is recorded whole or not at all.
    Default: `100.0`."""
    models: Names = ()
    """Models to record. Default: `[]`, which records all models."""
    payload: PayloadChoice = "none"
    """What is written of the elements of tensors: nothing, a keyed hash, or all of them. `full`
    also writes the texts of errors. Default: `none`."""
    tensors: Mapping[Name, PayloadChoice] = Field(default_factory=dict)
    """The same for single tensors, by name. Default: `{}`."""
    parameters: Literal["none", "full"] = "none"
    """Whether parameters of requests and replies are written. Default: `none`."""
    headers: tuple[Text, ...] = ()
    """Headers of requests to write. Names of credentials are refused. Default: `[]`."""
    wire: bool = False
    """Write the messages of clients too, refused requests included. Needs `payload: full`.
    Default: `false`."""
    segment_bytes: Size = Field(256 * _MIB, ge=_MIB)
    """Size at which a file is sealed. Default: `256MiB`."""
    segment_time: Duration = Field(3600.0, gt=0)
    """Time after which a file is sealed. Default: `1h`."""
    max_bytes: Size = Field(4096 * _MIB, ge=_MIB)
    """Largest size of all files together. Default: `4GiB`."""
    when_full: Literal["rotate", "stop"] = "rotate"
    """At `max_bytes`: remove the oldest file, or stop recording. Default: `rotate`."""
    min_free: float = Field(10.0, ge=0, lt=100)
    """Percentage of the disk that stays free. Below it recording stops. Default: `10.0`."""
    outbox_bytes: Size = Field(64 * _MIB, ge=1)
    """Bytes of calls that may wait for the disk in each worker. Further calls are not recorded, and
    counted. Default: `64MiB`."""


class StateConfig(Model):
    """Files that the gateway keeps across restarts."""

    directory: Text
    """Directory of the files, relative to the configuration file. Each gateway needs its own."""


class StockConfig(Model):
    """Counts of who calls what, for `gateway stock`. Needs `state`."""

    clients: Literal["full", "prefix", "hash", "none"] = "full"
    """What is kept of the addresses of clients: all, the network (/24 or /48), a hash with a new
    key in each process, or nothing. Default: `full`."""


class CompareRuleConfig(Model):
    """How one output of a model is compared. All conditions that are present must hold."""

    atol: float | None = Field(None, ge=0)
    """With `rtol`, the largest difference of each element: `atol + rtol * abs(old)`. Default: the
    tolerance of the datatype, or 0 if the rule has another condition."""
    rtol: float | None = Field(None, ge=0)
    """See `atol`. Default: see `atol`."""
    fraction: float = Field(0.0, ge=0, lt=1)
    """Share of the elements that may break `atol`, `rtol` or `ulp`. Default: `0.0`."""
    ulp: int | None = Field(None, ge=0)
    """Largest number of representable values between two elements. Default: no such condition."""
    cosine: float | None = Field(None, ge=-1, le=1)
    """Least cosine of each vector of the last axis. Default: no such condition."""
    top_k: int | None = Field(None, ge=1)
    """Number of the largest elements that must be the same. Default: no such condition."""
    axis: int = -1
    """Axis of `top_k`. Default: `-1`."""
    order: bool = False
    """Whether `top_k` also compares the order. Default: `false`."""
    text: Literal["exact", "nfc", "casefold", "whitespace", "json"] | None = None
    """How elements of BYTES are normalised before they are compared. Default: `exact`."""
    nan: Literal["equal", "differ"] = "equal"
    """Whether NaN equals NaN. Default: `equal`."""
    datatype: Literal["exact", "widen"] = "exact"
    """Whether another datatype of the same kind is allowed. Default: `exact`."""
    shape: Literal["exact", "squeeze"] = "exact"
    """Whether axes of size 1 matter. Default: `exact`."""


RuleChoice = Literal["exact", "ignore"] | CompareRuleConfig


class CompareConfig(Model):
    """How the replies of two servers are compared. Floats have a tolerance by default."""

    default: RuleChoice = CompareRuleConfig()
    """Rule of outputs without their own. Its tolerance applies to floats only; everything else must
    be equal. Default: 1e-5 for FP32 and FP64, 1e-3 for FP16, 1e-2 for BF16."""
    outputs: Mapping[Name, RuleChoice] = Field(default_factory=dict)
    """Rules by output: `exact`, `ignore`, or conditions. Default: `{}`."""


class MismatchGuardConfig(Model):
    """Guard of the replies: calls whose outputs differ in values or structure."""

    below: Share = Field(gt=0, lt=1)
    """Share of the compared calls that may differ."""


class ErrorsGuardConfig(Model):
    """Guard of the errors of the new server."""

    below: Share | None = Field(None, gt=0, lt=1)
    """Share of the calls that may fail at the new server alone, or with an error of a server.
    Default: no such limit."""
    above_old: Share | None = Field(None, gt=0, lt=1)
    """Largest share of failed calls at the new server, less that at the old one. Any error counts.
    Default: no such limit."""


class LatencyGuardConfig(Model):
    """Guard of the times of the new server."""

    p99: Duration | None = Field(None, gt=0)
    """Largest 99th percentile. Default: no such limit."""
    p99_ratio: float | None = Field(None, gt=0)
    """Largest 99th percentile as a multiple of that of the old server, for the same calls.
    Default: no such limit."""


class GuardsConfig(Model):
    """Limits that the new server must keep. Each holds, trips, or needs more calls."""

    mismatch: MismatchGuardConfig | None = None
    """Limit of replies that differ. Default: no such guard."""
    errors: ErrorsGuardConfig | None = None
    """Limits of errors. Default: no such guard."""
    latency: LatencyGuardConfig | None = None
    """Limits of times. Default: no such guard."""


class CutoverConfig(Model):
    """When the new server may get the traffic."""

    guards: GuardsConfig = GuardsConfig()
    """Limits that `gateway replay`, `gateway diff` and `gateway report` judge."""


class MigrationConfig(Model):
    """A migration to another server, for `gateway replay --compare FILE#NAME`."""

    compare: CompareConfig = CompareConfig()
    """Rules of the outputs."""
    cutover: CutoverConfig = CutoverConfig()
    """Guards of the new server."""
