"""Who may do what, and how much of it: the rules of `security.rules`, and `quotas`.

See `gateway.config.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gateway.config.tls import TlsConfig
from gateway.settings.fields import (
    GRPC_SERVER,
    QUOTA_LIMIT,
    STORE_URL,
    DottedName,
    Duration,
    FullNames,
    HeaderNames,
    Name,
    NameOf,
    Names,
    Size,
    Text,
    as_list,
)
from gateway.settings.model import Model
from gateway.settings.units import parse_size

Operation = Literal[
    "all",
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "statistics",
    "trace",
    "logging",
    "index",
    "model-repository",
    "switch",
    "passthrough",
    "metrics",
]
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that no other program gets."""

OPERATIONS: tuple[str, ...] = Operation.__args__  # type: ignore[attr-defined]  # of a Literal
"""The names of operations, and `all`."""

Operations = Annotated[
    tuple[Operation, ...],
    BeforeValidator(as_list),
    WithJsonSchema(
        {
            "$comment": "operations",
            "anyOf": [
                {"enum": list(OPERATIONS)},
                {"type": "array", "items": {"enum": list(OPERATIONS)}},
            ],
        }
    ),
]


class ConditionsConfig(Model):
    """Conditions on a client and a call. All of them must hold, and of a list one entry.

    Patterns may contain `*`, `?` and `[...]`.
    """

    clients: Annotated[FullNames, NameOf("client")] | None = None
    """Names or patterns of clients; `anonymous` only in full. Default: any but `anonymous`."""
    groups: Annotated[FullNames, NameOf("group")] | None = None
    """Names or patterns of groups, of which the client has one. Default: any."""
    tiers: Annotated[FullNames, NameOf("tier")] | None = None
    """Names or patterns of tiers. Default: any."""
    labels: Annotated[Mapping[Name, FullNames], NameOf("label")] = Field(default_factory=dict)
    """Labels of the client, each with patterns of its value. Default: any."""
    claims: Annotated[Mapping[Name, FullNames], NameOf("claim")] = Field(default_factory=dict)
    """Claims of its token, each with patterns of its value: of one element of a list, of one
    word of `scope`. A name that begins with `/` is a JSON pointer. Default: any."""
    models: Annotated[FullNames, NameOf("model")] | None = None
    """Names or patterns of models, as the client names them. Default: any, and calls without a
    model."""
    versions: Names | None = None
    """Requested versions or patterns; `""` for none. Default: any."""
    protocols: Annotated[FullNames, NameOf("protocol")] | None = None
    """Protocol and carrier, such as `oip.http` or `oip.*`. Default: any."""
    listeners: Annotated[FullNames, NameOf("listener")] | None = None
    """Names or patterns of listeners. Default: any."""

    def conditions(self) -> dict[str, Any]:
        """Return the conditions by their names."""
        return {name: getattr(self, name) for name in ConditionsConfig.model_fields}


class RuleConfig(ConditionsConfig):
    """A rule that allows or denies calls.

    A call is allowed if a rule allows it and none denies it, in any order. Rules with `mode:
    shadow` are as if they were absent; calls that they would refuse are counted and logged.
    """

    name: Name | None = None
    """Its name in the log and in `gateway explain`, different for each. Default: `rule-N`, N
    from 1."""
    effect: Literal["allow", "deny"] = "allow"
    """What happens to the calls that match. Default: `allow`."""
    mode: Literal["enforce", "shadow"] = "enforce"
    """`shadow` only counts and logs what it would refuse. Default: `enforce`."""
    operations: Operations = Field(min_length=1)
    """`health`, `metadata`, `inference`, `shared-memory`, `model-config`, `statistics`, `trace`,
    `logging`, `index`, `model-repository` with the index, `switch`, `passthrough`, `metrics` of
    a listener, or `all`."""
    max_elements: int | None = Field(None, ge=0)
    """Most elements of the inputs of an inference. Default: any."""
    max_bytes: Size | None = None
    """Most bytes of them. Default: any."""

    @model_validator(mode="after")
    def _check_effect(self) -> RuleConfig:
        for key in ("max_elements", "max_bytes"):
            if self.effect == "deny" and getattr(self, key) is not None:
                raise ValueError(f"{key!r} is for rules with 'effect: allow', and this one denies")
        return self


class ExternalConfig(Model):
    """A program that decides about calls that the rules allow. It never gets bodies or credentials.

    It needs exactly one of `grpc` and `python`.
    """

    grpc: Annotated[Text, Field(pattern=GRPC_SERVER)] | None = None
    """`HOST:PORT` or `grpcs://HOST:PORT` of a server of `envoy.service.auth.v3.Authorization`,
    such as OPA-Envoy. Default: none."""
    tls: TlsConfig | None = None
    """TLS to it. `tls: {}` verifies it with the authorities of the system. Default: that of the
    URL."""
    python: DottedName | None = None
    """A callable `decide(client, facts)`, plain or async, as `package.module:name`. `True`
    allows; `False` or a text denies. Default: none."""
    timeout: Duration = Field(0.05, gt=0)
    """Longest time for a decision. Default: `50ms`."""
    on_failure: Literal["deny", "allow"] = "deny"
    """What happens to calls without a decision in time. Default: `deny`."""
    cache: Duration = 10.0
    """How long a decision holds for calls with equal facts. `0s` asks about every call. Default:
    `10s`."""
    operations: Operations = ("all",)
    """Operations that it decides about. Default: `[all]`."""
    headers: HeaderNames = ()
    """Headers that it gets. Default: `[]`."""

    @model_validator(mode="after")
    def _check_program(self) -> ExternalConfig:
        if (self.grpc is None) == (self.python is None):
            raise ValueError("'external' needs exactly one of 'grpc' and 'python'")
        if self.grpc is None and self.tls is not None:
            raise ValueError("'tls' is for 'grpc', and 'external' has 'python'; remove it")
        for name in self.headers:
            if name in CREDENTIAL_HEADERS:
                raise ValueError(f"'headers' has {name!r}, which holds credentials; remove it")
        return self

    @property
    def address(self) -> str:
        """The address of the server; "" for none."""
        return (self.grpc or "").rpartition("://")[2]

    @property
    def server_tls(self) -> TlsConfig | None:
        """TLS to the server: `tls`, or the default of `grpcs://`."""
        is_url = (self.grpc or "").startswith("grpcs://")
        return TlsConfig() if self.tls is None and is_url else self.tls


class QuotaStoreConfig(Model):
    """Where gateways share the budgets of `quotas`: Valkey or Redis, with the extra `quota`.

    A call that meets an empty lease waits at most twice `timeout`. A store that a reload adds or
    changes gets the counts of the gateway.
    """

    url: Annotated[Text, Field(pattern=STORE_URL)] = Field(repr=False)
    """URL of the server: `redis://`, `rediss://` or `unix://`."""
    prefix: Name = "tensor-gateway"
    """Beginning of its keys there. Default: `tensor-gateway`."""
    timeout: Duration = Field(0.05, gt=0)
    """Longest time of a request. Default: `50ms`."""
    replicas: int = Field(1, ge=1)
    """Number of gateways, while the store has told nothing. Without the store each has an equal
    part. Default: `1`."""


class QuotaMatchConfig(ConditionsConfig):
    """Which calls a quota counts. Without conditions those of `anonymous` count, too."""

    operations: Operations = ("inference",)
    """As in `security.rules`. Default: `[inference]`."""
    routes: Annotated[FullNames, NameOf("route")] | None = None
    """Names or patterns of routes. Default: any."""


class QuotaConfig(Model):
    """How much of something clients may use in a time.

    A call needs room in all quotas that match it, or none is charged. Calls that reach no target
    cost nothing.
    """

    match: QuotaMatchConfig = QuotaMatchConfig()
    """Which calls count, which are all inferences without it."""
    by: Annotated[Names, Field(min_length=1), NameOf("label", "label:")] = ("client",)
    """What has a budget of its own: `client`, `group`, `model`, `route` or `label:NAME`, or
    several. `none` is one budget for all. Default: `[client]`."""
    unit: Literal["calls", "elements", "bytes", "seconds"] = "calls"
    """What is counted: calls, elements or bytes of their inputs, or seconds of the target, which
    are charged afterwards. Default: `calls`."""
    limit: Annotated[Text, Field(pattern=QUOTA_LIMIT)]
    """A number, or a size for `bytes`, and `/s`, `/min`, `/hour`, `/day` or `/month`. Hours,
    days and months are those of the calendar, in UTC."""
    burst: int | None = Field(None, ge=1)
    """With `/s` and `/min`, how much may come at once. Default: what `limit` allows in a second,
    at least 1."""
    mode: Literal["enforce", "shadow"] = "enforce"
    """`shadow` refuses nothing: it only counts and logs. Default: `enforce`."""
    headers: bool = True
    """Whether responses have the headers `RateLimit` and `RateLimit-Policy`. Default: `true`."""

    @property
    def amount(self) -> int:
        """The number of `limit`."""
        number = self.limit.partition("/")[0]
        return parse_size(number) if self.unit == "bytes" else int(number)

    @property
    def period(self) -> str:
        """The time of `limit`: "s", "min", "hour", "day" or "month"."""
        return self.limit.partition("/")[2]

    @model_validator(mode="after")
    def _check_limit(self) -> QuotaConfig:
        number = self.limit.partition("/")[0]
        if self.unit != "bytes" and not number.isdecimal():
            raise ValueError(
                f"'limit' is {self.limit!r}; expected a whole number for the unit {self.unit!r}"
            )
        if not self.amount:
            raise ValueError(f"'limit' is {self.limit!r}; expected at least 1")
        if self.burst is not None and self.period not in {"s", "min"}:
            raise ValueError(f"'burst' is for /s and /min, and the limit is {self.limit!r}")
        for name in self.by:
            is_label = name.startswith("label:") and len(name) > len("label:")
            if not is_label and name not in {"client", "group", "model", "route", "none"}:
                raise ValueError(
                    f"'by' has {name!r}; expected 'client', 'group', 'model', 'route', "
                    "'label:NAME' or 'none'"
                )
        if "none" in self.by and len(self.by) > 1:
            raise ValueError("'by' has 'none' and other entries; expected 'none' alone")
        return self
