"""The keys of the migration kit in the configuration file: `stock`, `capture` and `migrations`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.settings.fields import (
    OFF_OR_FALSE,
    STICKY,
    Duration,
    Folder,
    Name,
    NameOf,
    Names,
    Share,
    Size,
    Text,
)
from gateway.settings.model import Model
from gateway.settings.setting import Setting

PayloadChoice = Literal["none", "hash", "full"]

_MIB = 1 << 20
_ALL: Final = 100


class RecordingConfig(Model):
    """What is recorded of which inferences, and where it is kept."""

    directory: Folder | None
    percent: float = Field(100.0, gt=0, le=100)
    """Share of the inferences. A sequence is recorded whole or not at all. Default: `100.0`."""
    payload: PayloadChoice = "none"
    """What is written of the elements of tensors: nothing, a keyed hash, or all. `full` also
    writes the texts of errors. Default: `none`."""
    tensors: Mapping[Name, PayloadChoice] = Field(default_factory=dict)
    """`payload` of single tensors, by name. Default: `{}`."""
    parameters: Literal["none", "full"] = "none"
    """Whether parameters of requests and replies are written. Default: `none`."""
    headers: tuple[Text, ...] = ()
    """Headers of requests to write; never those of credentials. Default: `[]`."""
    wire: bool = False
    """Write clients' messages too, with refused requests. Needs `payload: full`. Default:
    `false`."""
    segment_bytes: Size = Field(256 * _MIB, ge=_MIB)
    """Size at which a file is sealed. Default: `256MiB`."""
    segment_time: Duration = Field(3600.0, gt=0)
    """Time after which a file is sealed. Default: `1h`."""
    max_bytes: Size = Field(4096 * _MIB, ge=_MIB)
    """Most bytes of all files. Default: `4GiB`."""
    when_full: Literal["rotate", "stop"] = "rotate"
    """At `max_bytes`: remove the oldest file, or stop. It always stops while less than 10 % of
    the disk is free. Default: `rotate`."""
    outbox_bytes: Size = Field(64 * _MIB, ge=1)
    """Bytes of calls that may wait for the disk in each worker. Further ones are dropped, and
    counted. Default: `64MiB`."""
    upload: Text | None = None
    """Where sealed files are copied: `s3://BUCKET/PREFIX`, `gs://`, `az://` or `file:///FOLDER`.
    All but the last need the extra `objects`, and the package of the store. Default: none."""
    keep_local: Duration | None = None
    """When an uploaded file is removed here. Needs `upload`. Default: none: they stay until
    `max_bytes`."""
    # A retired key, see retired.py.
    min_free: float = Field(10.0, ge=0, lt=100)

    @model_validator(mode="after")
    def _check_upload(self) -> RecordingConfig:
        if self.keep_local is not None and self.upload is None:
            raise ValueError("'keep_local' needs 'upload': files that are nowhere else would go")
        return self


class CaptureConfig(RecordingConfig):
    """Recording of inferences with their replies, for `gateway capture` and `gateway replay`."""

    directory: Folder
    """Directory of the files, which only this user can read."""
    enabled: bool = True
    """Whether it begins with the gateway. `gateway capture start` and `stop` change it. Default:
    `true`."""
    models: Annotated[Names, NameOf("model")] = ()
    """Models to record. Default: `[]`, which means all."""


class MigrationCaptureConfig(RecordingConfig):
    """Recording of the calls of a migration, besides that of `capture`.

    It draws as `sample` does: the calls of the smaller share are among those of the larger one.
    """

    directory: Folder | None = None
    """Directory of the files, of no other recording. Default: `captures/NAME` in
    `state.directory`."""
    wire: bool = False
    """Write the messages of clients too. Needs `payload: full`. Default: `false`."""


class StockConfig(Model):
    """Counts of who calls what, for `gateway stock`. Needs `state`."""

    clients: Literal["full", "prefix", "hash", "none"] = "full"
    """What is kept of clients' addresses: all, the network (/24 or /48), a hash with a new key
    in each process, or nothing. Default: `full`."""


class CompareRuleConfig(Model):
    """How one output of a model is compared. All conditions that are present must hold."""

    atol: float | None = Field(None, ge=0)
    """With `rtol`, the largest difference of an element: `atol + rtol * abs(old)`. Default: the
    tolerance of the datatype, or 0 if the rule has another condition."""
    rtol: float | None = Field(None, ge=0)
    """See `atol`. Default: see `atol`."""
    fraction: float = Field(0.0, ge=0, lt=1)
    """Share of elements that may break `atol`, `rtol` or `ulp`. Default: `0.0`."""
    ulp: int | None = Field(None, ge=0)
    """Most representable values between two elements; -0 is +0. Default: any."""
    cosine: float | None = Field(None, ge=-1, le=1)
    """Least cosine of each vector of the last axis; two zero vectors agree. Default: any."""
    top_k: int | None = Field(None, ge=1)
    """How many largest elements must be the same set; ties for the last place may swap.
    Default: none."""
    axis: int = -1
    """Axis of `top_k`. Default: `-1`."""
    order: bool = False
    """Whether `top_k` also compares the order. Default: `false`."""
    text: Literal["exact", "nfc", "casefold", "whitespace", "json"] | None = None
    """How elements of BYTES are normalised first. Default: `exact`."""
    nan: Literal["equal", "differ"] = "equal"
    """Whether NaN equals NaN; it never equals a number. Default: `equal`."""
    datatype: Literal["exact", "widen"] = "exact"
    """Whether a wider datatype of the same kind is allowed. Default: `exact`."""
    shape: Literal["exact", "squeeze"] = "exact"
    """Whether axes of size 1 matter. Default: `exact`."""
    rule: Name | None = None
    """The entry point of an installed `ComparisonRule`. Alone it also decides about datatypes
    and shapes; equal tensors pass it. Default: none."""


RuleChoice = Literal["exact", "ignore"] | CompareRuleConfig


class CompareConfig(Model):
    """How the replies of two servers are compared. Floats have a tolerance by default."""

    default: RuleChoice = CompareRuleConfig()
    """Rule of outputs without their own. A tolerance applies to floats only; all else must be
    equal. Default: tolerances by datatype."""
    outputs: Mapping[Name, RuleChoice] = Field(default_factory=dict)
    """Rules by output. Default: `{}`."""

    @property
    def ignores_all(self) -> bool:
        """Whether no output is compared."""
        return {"ignore"} == {self.default, *self.outputs.values()}


class MismatchGuardConfig(Model):
    """Guard of the replies: calls whose outputs differ in values or structure."""

    below: Share = Field(gt=0, lt=1)
    """Share of the compared calls that may differ."""


class ErrorsGuardConfig(Model):
    """Guard of the errors of the new server."""

    below: Share | None = Field(None, gt=0, lt=1)
    """Share of calls that may fail at the new server alone, or with an error of a server.
    Default: any."""
    above_old: Share | None = Field(None, gt=0, lt=1)
    """Largest share of calls that failed at the new server alone, less those at the old one alone.
    Cancelled ones do not count. Default: any."""


DEFAULT_MISMATCH: Final = MismatchGuardConfig(below=0.02)
"""The limit of mismatches of a cut-over that compares replies and names none. It holds after
320 calls without a mismatch, which is less than `min_calls`."""
DEFAULT_ERRORS: Final = ErrorsGuardConfig(above_old=0.02)
"""The limits of errors of a cut-over that names none. They hold after 320 calls without a failure,
which is less than `min_calls`."""


def _or_default_mismatch(value: object) -> object:
    """Read an absent guard as the one that stands by default."""
    return DEFAULT_MISMATCH if value is None else value


def _or_default_errors(value: object) -> object:
    """Read a guard without any limit, such as `{}`, as the one that stands by default."""
    return DEFAULT_ERRORS if value is None or value == {} else value


class LatencyGuardConfig(Model):
    """Guard of the times of the new server."""

    p99: Duration | None = Field(None, gt=0)
    """Largest 99th percentile. Default: any."""
    p99_ratio: float | None = Field(None, gt=0)
    """The same as a multiple of that of the old server, for the same calls. Default: any."""


class GuardsConfig(Model):
    """Limits that the new server must keep. Each holds, trips, or needs more calls."""

    mismatch: Annotated[
        MismatchGuardConfig | Literal["off"], BeforeValidator(_or_default_mismatch), OFF_OR_FALSE
    ] = DEFAULT_MISMATCH
    """Limit of replies that differ in values or structure. With `off`, a cut-over goes on to a
    server with wrong results. Where `compare` ignores all outputs there is none. Default:
    `{below: 2%}`."""
    errors: Annotated[
        ErrorsGuardConfig | Literal["off"], BeforeValidator(_or_default_errors), OFF_OR_FALSE
    ] = DEFAULT_ERRORS
    """Limits of errors. With `off`, a cut-over goes on to a server that fails all calls. Default:
    `{above_old: 2%}`."""
    latency: LatencyGuardConfig | None = None
    """Limits of times. Default: none."""

    @property
    def mismatch_limit(self) -> float | None:
        """The largest share of calls that may differ; None if it is off."""
        return None if isinstance(self.mismatch, str) else self.mismatch.below

    @property
    def has_default_mismatch(self) -> bool:
        """Whether the file names no limit of mismatches, nor that there is none."""
        return "mismatch" not in self.model_fields_set

    @property
    def error_limits(self) -> ErrorsGuardConfig | None:
        """The limits of errors; None if they are off."""
        return None if isinstance(self.errors, str) else self.errors

    @property
    def has_default_errors(self) -> bool:
        """Whether the limits of errors are those of a file that names none."""
        return self.errors == DEFAULT_ERRORS


class CutoverConfig(Model):
    """When the target `new` gets which share of the calls, and when it loses them again."""

    steps: tuple[float, ...] = (1.0, 5.0, 25.0, 50.0, 100.0)
    """Percentages of the calls that go to `new`, one after the other, up to 100. Before them it
    has shadow calls only. Default: `[1.0, 5.0, 25.0, 50.0, 100.0]`."""
    bake: Duration = 600.0
    """Least time of a step with calls. Default: `10m`."""
    min_calls: int = Field(500, ge=0)
    """Least successful replies of `new` to clients in each step, or compared replies while calls
    are only mirrored. Default: `500`."""
    max_wait: Duration = Field(21600.0, gt=0)
    """When a step that does not advance is paused. Default: `6h`."""
    approve: tuple[float, ...] = ()
    """Steps that begin only after `gateway cutover approve`. Default: `[]`."""
    sticky: Annotated[Text, Field(pattern=STICKY)] = "client"
    """Whose calls go to the same target while the share stays: `client` for the address,
    `header:NAME`, or `none` for single calls. Default: `client`."""
    on_trip: Literal["rollback", "pause"] = "rollback"
    """What a guard does. Both send all calls to `old`: `rollback` ends the cut-over, and `pause`
    waits for `gateway cutover resume`, at the step that tripped. Default: `rollback`."""
    coordinate: Literal["none", "file", "kubernetes"] = "none"
    """How several gateways agree: by a directory that all share, or by a Lease and a ConfigMap
    in the namespace of their pods. Default: `none`, for a single one."""
    directory: Folder | None = None
    """Directory of its files. `coordinate: file` needs it, shared by all; `kubernetes` has none.
    Default: `cutover` in `state.directory`."""
    guards: GuardsConfig = GuardsConfig()
    """Limits of the new server."""

    @model_validator(mode="after")
    def _check_steps(self) -> CutoverConfig:
        rising = all(a < b for a, b in pairwise(self.steps))
        if not self.steps or not rising or self.steps[0] <= 0 or self.steps[-1] != _ALL:
            found = ", ".join(f"{each:g}" for each in self.steps) or "none"
            raise ValueError(
                f"the steps are {found}; expected percentages above 0 that rise to 100"
            )
        if self.coordinate == "file" and self.directory is None:
            raise ValueError("'coordinate: file' needs 'directory', which all gateways share")
        if self.coordinate == "kubernetes" and self.directory is not None:
            raise ValueError("'coordinate: kubernetes' keeps no files; expected no 'directory'")
        unknown = [each for each in self.approve if each not in self.steps]
        if unknown:
            raise ValueError(f"'approve' has {unknown[0]:g}, which is none of the steps")
        return self


class SampleConfig(Model):
    """Which calls are compared. The same calls are chosen by all replicas and after a restart."""

    percent: float = Field(10.0, gt=0, le=100)
    """Share of the calls. A sequence is chosen whole or not at all. Default: `10.0`."""
    per_second: float = Field(200.0, gt=0, le=1_000_000)
    """Most calls in a second, in each worker. Further ones are dropped, with the reason `rate`.
    Default: `200.0`."""
    first: int = Field(20, ge=0, le=100_000)
    """Further first calls of each client, protocol, model and signature of the inputs. Default:
    `20`."""


class MirrorConfig(Model):
    """How the calls are put to the other target, while no client waits."""

    timeout: Duration | None = Field(None, gt=0)
    """Longest time of a shadow call. Default: twice that of the client's call, 1 s to 10 s."""
    in_flight: int = Field(32, ge=1, le=1024)
    """Most shadow calls at the same time. Default: `32`."""
    sequences: Literal["skip", "whole"] = "skip"
    """Whether sequences are compared: not at all, or whole, in order, at one endpoint and under
    the same id, which needs two servers. Default: `skip`."""
    streams: Literal["join", "items"] = "join"
    """How streams are compared: BYTES joined over all replies, or each reply, of which there
    must be as many. Default: `join`."""
    large: Literal["tee", "skip"] = "tee"
    """Whether bodies that are forwarded while they arrive are copied, or their calls left out.
    Default: `tee`."""


class NoiseConfig(Model):
    """Second calls to the old target, which show how much its own replies differ."""

    percent: float = Field(1.0, gt=0, le=100)
    """Share of compared calls that the old target gets once more. Default: `1.0`."""


class MigrationConfig(Model):
    """A migration from an old to a new target of a route.

    Calls that one target answers are also put to the other, and the replies are compared. Without
    `route` it has rules for `gateway replay --compare FILE#NAME` only.
    """

    route: Annotated[Name, NameOf("route")] | None = None
    """Route whose calls migrate. It needs explicit targets. Default: none, for offline use."""
    old: Name | None = None
    """Target of today, by its name in logs: `UPSTREAM/MODEL:VERSION`, as far as the target has
    them, or `local/MODEL`. Required with `route`. Default: none."""
    new: Name | None = None
    """Target that replaces it. With `cutover` its weight is 0, and the cut-over alone changes
    it. Required with `route`, unless there is only a `capture`. Default: none."""
    sample: SampleConfig = SampleConfig()
    """Which calls are compared: the same at all replicas, and after a restart."""
    mirror: MirrorConfig = MirrorConfig()
    """How the calls are put to the other target."""
    noise: NoiseConfig | None = None
    """Second calls to the old target. `{}` switches them on. Default: none."""
    compare: CompareConfig = CompareConfig()
    """Rules of the outputs."""
    capture: MigrationCaptureConfig | None = None
    """Recording of the calls of the route. `{}` switches it on. It also says which elements may
    be shown. Default: none; `capture` of the file says what may be shown."""
    cutover: CutoverConfig | None = None
    """Steps and guards of the new target. Default: none; no call moves."""

    @property
    def guards(self) -> GuardsConfig:
        """The limits of the new target; the default one of mismatches needs compared outputs."""
        if self.cutover is None:
            return GuardsConfig(mismatch="off", errors="off")
        guards = self.cutover.guards
        if guards.has_default_mismatch and self.compare.ignores_all:
            return guards.model_copy(update={"mismatch": "off"})
        return guards

    @model_validator(mode="after")
    def _check_targets(self) -> MigrationConfig:
        if self.route is None:
            live = {"old", "new", "sample", "mirror", "noise", "capture"} & self.model_fields_set
            if live:
                raise ValueError(f"{min(live)!r} needs 'route', whose calls are compared")
        elif self.old is not None and self.new is None and self.capture is not None:
            needs_new = {"sample", "mirror", "noise", "cutover"} & self.model_fields_set
            if needs_new:
                raise ValueError(f"{min(needs_new)!r} needs 'new'; without it calls are recorded")
        elif self.old is None or self.new is None:
            raise ValueError("a migration with 'route' needs 'old' and 'new', two of its targets")
        elif self.old == self.new:
            raise ValueError(f"'old' and 'new' are the same target {self.old!r}")
        return self


STOCK: Final = Setting[StockConfig | None](
    key="stock",
    type=StockConfig | None,
    default=None,
    help="Counts of who calls what. `{}` switches them on. Default: off.",
    places=("top",),
    needs_restart=True,
)
CAPTURE: Final = Setting[CaptureConfig | None](
    key="capture",
    type=CaptureConfig | None,
    default=None,
    help="Recording of inferences. Default: nothing is recorded.",
    places=("top",),
    needs_restart=True,
)
MIGRATIONS: Final = Setting[Mapping[str, MigrationConfig]](
    key="migrations",
    type=Mapping[Name, MigrationConfig],
    default={},
    help="Migrations from an old to a new server, by name. Default: none.",
    places=("top",),
    needs_restart=True,
)
