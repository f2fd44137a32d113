"""Who may do what: the rules of `security.rules`.

See `gateway.config.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gateway.settings.fields import Name, Names, Size, as_list
from gateway.settings.model import Model

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
]
OPERATIONS: tuple[str, ...] = Operation.__args__  # type: ignore[attr-defined]  # of a Literal
"""The names of operations, and `all`."""

Operations = Annotated[
    tuple[Operation, ...],
    BeforeValidator(as_list),
    WithJsonSchema(
        {
            "$comment": "operation or list of operations",
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

    clients: Names | None = None
    """Names or patterns of clients. `anonymous` matches only where it stands in full. Default: any
    client but `anonymous`."""
    groups: Names | None = None
    """Names or patterns of groups, of which the client needs one. Default: no condition."""
    tiers: Names | None = None
    """Names or patterns of tiers. Default: no condition."""
    labels: Mapping[Name, Names] = Field(default_factory=dict)
    """Labels of the client, each with patterns of its value. Default: no condition."""
    claims: Mapping[Name, Names] = Field(default_factory=dict)
    """Claims of the client's token, each with patterns of its value. Of a list one element must
    match, and of `scope` one word. A name that begins with `/` is a JSON pointer. Default: no
    condition."""
    models: Names | None = None
    """Names or patterns of models, as the client names them. Default: any model, and calls without
    a model."""
    versions: Names | None = None
    """Requested versions, or patterns of them. `""` stands for requests without a version. Default:
    any version."""
    protocols: Names | None = None
    """Names or patterns of protocol and carrier, such as `oip.http` or `oip.*`. Default: any."""
    listeners: Names | None = None
    """Names or patterns of listeners. Default: any."""


class RuleConfig(ConditionsConfig):
    """A rule that allows or denies calls.

    A call is allowed if a rule allows it and none denies it; the order does not matter. Without
    rules clients may do all that their listener switches on.
    """

    name: Name | None = None
    """Name of the rule in the log and in `gateway explain`. Each rule needs a different one.
    Default: `rule-N`, with the position of the rule in the list from 1."""
    effect: Literal["allow", "deny"] = "allow"
    """What happens to the calls that match. Default: `allow`."""
    operations: Operations = Field(min_length=1)
    """Operations of the rule: `health`, `metadata`, `inference`, `shared-memory`, `model-config`,
    `statistics`, `trace`, `logging`, `index`, `model-repository` with the index, `switch`,
    `passthrough`, or `all`."""
    max_elements: int | None = Field(None, ge=0)
    """Largest number of elements of all inputs of an inference. Default: no condition."""
    max_bytes: Size | None = None
    """Largest size of all inputs of an inference. Default: no condition."""

    @model_validator(mode="after")
    def _check_effect(self) -> RuleConfig:
        for key in ("max_elements", "max_bytes"):
            if self.effect == "deny" and getattr(self, key) is not None:
                raise ValueError(f"{key!r} is for rules with 'effect: allow', and this one denies")
        return self
