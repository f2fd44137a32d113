"""The configuration of a shadow process: one route to each target of each migration.

It has only the upstreams and models that shadow calls need, without batches, kept replies, retries
and shares. So shadow calls have their own connections and limits.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.api.protocol import Codec
from gateway.config.models import Config, LifecycleConfig, ModelConfig, UpstreamConfig
from gateway.config.routes import MatchConfig, RouteConfig, TargetConfig
from gateway.migration.captures.sampling import SHADOW_HEADER
from gateway.migration.replay.forwarded import codec_of
from gateway.migration.targets import LiveMigration, live_migrations
from gateway.policies.limits.concurrency import ROUTE_IN_FLIGHT
from gateway.policies.limits.deadline import ROUTE_TIMEOUT
from gateway.policies.limits.retry_keys import ROUTE_RETRY, RetryConfig
from gateway.policies.signatures import SIGNATURE

OLD: Final = "old"
NEW: Final = "new"

LONGEST_S: Final = 10.0
"""Longest time of a shadow call by default."""

# No model has such a name, so steps of pipelines do not take a shadow route.
_NO_MODEL: Final = "\x00"


def shadow_route(migration: str, side: str) -> str:
    """Return the name of the route to the old or the new target of a migration."""
    return f"{migration} ({side})"


def shadow_config(config: Config) -> Config:
    """Return the configuration of the shadow process for *config*; no migration needs it twice."""
    migrations = live_migrations(config)
    targets = [target for each in migrations for target in (each.old, each.new)]
    has_pipeline = any(_is_pipeline(target, config) for target in targets)
    routes = [
        _route(each, side, target, config)
        for each in migrations
        for side, target in ((OLD, each.old), (NEW, each.new))
    ]
    upstreams = {target.upstream for target in targets if target.upstream is not None}
    models = {target.model for target in targets if target.upstream is None}
    # The routes that tell the names of clients are not in the result.
    declared = {
        name: (config.models.get(name) or ModelConfig()).model_copy(update={"protocols": each})
        for name, each in config.declared_protocols().items()
    }
    return config.model_copy(
        update={
            "listeners": (),
            "admin": None,
            "stock": None,
            "capture": None,
            "events": {},
            "routes": (*routes, *(config.routes if has_pipeline else ())),
            "upstreams": {
                name: _with_shadow_header(upstream)
                for name, upstream in config.upstreams.items()
                if has_pipeline or name in upstreams
            },
            "models": {
                name: model.model_copy(update={"batching": None, "cache": None})
                for name, model in {**config.models, **declared}.items()
                if _is_used(model) and (has_pipeline or not model.backend or name in models)
            },
            "pipelines": config.pipelines if has_pipeline else {},
            "lifecycle": LifecycleConfig(),
        }
    )


def forwarding_codecs(migration: LiveMigration, config: Config) -> Mapping[str, Codec[Any, Any]]:
    """Return the codecs of both targets, if they get messages of one form as they came, else none.

    Raises:
        LookupError, ValueError: An upstream is not valid.
    """
    found = {}
    for side, target in ((OLD, migration.old), (NEW, migration.new)):
        if target.upstream is not None:
            upstream = config.upstreams[target.upstream]
            found[side] = codec_of(upstream.all_urls[0], upstream.options)
    forms = {each.whole for each in found.values()}
    return found if len(found) == len((OLD, NEW)) and len(forms) == 1 and "" not in forms else {}


def forwarded_form(migration: LiveMigration, config: Config) -> str:
    """Return the form of the messages that both targets get as they came; "" for none."""
    return next((each.whole for each in forwarding_codecs(migration, config).values()), "")


def _is_pipeline(target: TargetConfig, config: Config) -> bool:
    return target.upstream is None and target.model in config.pipelines


def _is_used(model: ModelConfig) -> bool:
    return model.backend is not None or SIGNATURE.of(model) is not None or bool(model.protocols)


def _route(
    migration: LiveMigration, side: str, target: TargetConfig, config: Config
) -> RouteConfig:
    found = next(
        route
        for number, route in enumerate(config.routes, start=1)
        if (route.name or f"route-{number}") == migration.route
    )
    mirror = migration.config.mirror
    return type(found).model_validate(
        {
            "name": shadow_route(migration.name, side),
            "match": MatchConfig(model=(_NO_MODEL,)),
            "targets": (target.model_copy(update={"weight": 1, "priority": 0}),),
            ROUTE_TIMEOUT.key: max(mirror.timeout or LONGEST_S, LONGEST_S),
            ROUTE_RETRY.key: RetryConfig(budget=0.0),
            ROUTE_IN_FLIGHT.key: mirror.in_flight,
            "sequence_ids": found.sequence_ids,
        }
    )


def _with_shadow_header(upstream: UpstreamConfig) -> UpstreamConfig:
    return upstream.model_copy(update={"headers": {**upstream.headers, SHADOW_HEADER: "1"}})
