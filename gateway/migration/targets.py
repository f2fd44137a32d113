"""The targets of each migration of a configuration, and what is refused about them."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.app.build.route_rules import RuledRoute, ruled_routes, target_name
from gateway.config.models import Config
from gateway.config.routes import TargetConfig
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.migration.settings import MIGRATIONS, CompareConfig, MigrationConfig, RuleChoice
from gateway.registry import comparison_rule
from gateway.settings.units import Url


@dataclass(frozen=True, slots=True)
class LiveMigration:
    """A migration of a route, with its two targets.

    Attributes:
        name: The name of the migration.
        route: The name of its route.
        old: The target that clients use today.
        new: The target that replaces it.
    """

    name: str
    config: MigrationConfig
    route: str
    old: TargetConfig
    new: TargetConfig

    @property
    def old_name(self) -> str:
        """The old target's name in logs and metrics."""
        return target_name(self.old)

    @property
    def new_name(self) -> str:
        """The new target's name in logs and metrics."""
        return target_name(self.new)


def live_migrations(config: Config) -> list[LiveMigration]:
    """Return the migrations that compare live calls, of a configuration without problems."""
    routes = {route.name: route for route in ruled_routes(config)}
    found = []
    for name, migration in MIGRATIONS.of(config).items():
        if migration.route is not None and migration.new is not None:
            targets = _targets(routes[migration.route])
            old, new = targets[migration.old or ""], targets[migration.new]
            found.append(LiveMigration(name, migration, migration.route, old, new))
    return found


def check_migrations(config: Config) -> Iterator[Finding]:
    """Yield what is wrong with the routes and targets of migrations."""
    routes = {route.name: route for route in ruled_routes(config)}
    users: dict[str, str] = {}
    for name, migration in MIGRATIONS.of(config).items():
        yield from _check_rules(("migrations", name, "compare"), migration.compare)
        if migration.route is None:
            continue
        at: KeyPath = ("migrations", name)
        route = routes.get(migration.route)
        if route is None or route.config is None:
            names = ", ".join(key for key, each in routes.items() if each.config) or "none"
            found = "unknown route" if route is None else "no explicit targets: route"
            yield (*at, "route"), f"{found} {migration.route!r}; routes with targets are {names}"
            continue
        if migration.route in users:
            other = users[migration.route]
            yield (*at, "route"), f"route {migration.route!r} already has migration {other!r}"
        users[migration.route] = name
        yield from _check_targets(at, migration, _targets(route), config)
        cutover = migration.cutover
        if cutover is not None and cutover.coordinate != "kubernetes" and config.state is None:
            yield (*at, "cutover"), "needs 'state: {directory: DIR}', where its steps are kept"


def _check_rules(at: KeyPath, compare: CompareConfig) -> Iterator[Finding]:
    """Yield the rules that no installed package has."""
    choices: list[tuple[KeyPath, RuleChoice]] = [((*at, "default"), compare.default)]
    choices += [((*at, "outputs", name), each) for name, each in compare.outputs.items()]
    for path, choice in choices:
        if not isinstance(choice, str) and choice.rule is not None:
            try:
                comparison_rule(choice.rule)
            except LookupError as error:
                yield (*path, "rule"), str(error)


def _targets(route: RuledRoute) -> dict[str, TargetConfig]:
    targets = () if route.config is None else route.config.targets
    return {target_name(target): target for target in targets}


def _check_targets(
    at: KeyPath, migration: MigrationConfig, targets: dict[str, TargetConfig], config: Config
) -> Iterator[Finding]:
    known = True
    for key, name in (("old", migration.old), ("new", migration.new)):
        if name is not None and name not in targets:
            known = False
            names = ", ".join(targets)
            yield (*at, key), f"unknown target {name!r}: route {migration.route!r} has {names}"
    if not known or migration.new is None:
        return
    old, new = targets[migration.old or ""], targets[migration.new]
    old_urls, new_urls = _urls(old, config), _urls(new, config)
    if old_urls & new_urls and (old.model, old.version) == (new.model, new.version):
        url = min(map(str, old_urls & new_urls))
        yield (*at, "new"), f"'old' and 'new' are the same model at {url}"
    shared = {url.authority for url in old_urls} & {url.authority for url in new_urls}
    if migration.mirror.sequences == "whole" and shared:
        message = f"'whole' needs two servers, and 'old' and 'new' are both at {min(shared)}"
        yield (*at, "mirror", "sequences"), message
    if migration.cutover is not None and new.weight:
        message = (
            f"target {migration.new!r} has weight {new.weight}; expected 0: the cut-over changes it"
        )
        yield (*at, "new"), message


def _urls(target: TargetConfig, config: Config) -> set[Url]:
    """Return the addresses of a target; none for a model of the gateway."""
    return set() if target.upstream is None else set(config.upstreams[target.upstream].all_urls)
