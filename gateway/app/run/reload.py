"""Reloads the configuration while the gateway runs.

`Reloader` reads and checks the file as the start does, and passes it to the gateway or to the
supervisor of the workers. A file with an error changes nothing.

`build/service_graph` builds all that stands between the listeners and the sockets of upstreams. A
reload builds the next graph with the same code, loads its new models, probes its new upstreams and
then connects the frontends to it. This last step has no `await`, so each call has one graph or the
other. `build/kept_parts` lists the parts that are kept, each with the source that must be equal.

`retirement` closes the old graph. Only its calls in progress still refer to its entries, so a
weak reference tells when the last one has ended, and calls pay nothing for it. Nothing else may
keep an entry (`tests/unit/app/test_gateway_reload.py`). Sequences that are open continue in the old
graph (`routing/finish_sequences`). Withheld calls end before clients close.

Keys that need a restart are refused, and one reload runs after the other. A single process applies
the result itself; the supervisor passes it to one worker after the other, and takes it back if one
of them fails. `runtime_changes` has drained endpoints and weights.
They are applied to every configuration that is loaded.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import structlog

from gateway.api.start_error import RELOAD_LATE, StartError
from gateway.app.build.parts import LeadingParts
from gateway.app.check.here import require_files
from gateway.app.check.unused_addresses import log_unused_addresses
from gateway.app.listen.path_ownership import ProtocolPaths, owned_paths
from gateway.app.run.announce import log_retired_keys
from gateway.app.run.config_watch import watch_config
from gateway.app.run.runtime_changes import RuntimeChanges, differences
from gateway.app.run.service_manager import ServiceManager
from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.own_thread import on_own_thread
from gateway.config.admin import AdminConfig
from gateway.config.load import ConfigError, LoadedConfig
from gateway.config.models import Config, ListenerConfig
from gateway.config.yaml_tree import Finding, KeyPath, Problem
from gateway.registry import settings
from gateway.settings.model import Model
from gateway.telemetry.faults import FAULTS
from gateway.telemetry.reload_metrics import APPLIED, FAILED, REJECTED, ReloadMetrics

log = structlog.get_logger(__name__)

Changes = Mapping[str, list[str]]
"""Names of parts that were added, replaced or removed, such as "upstream a"; "changed" has keys."""

Load = Callable[[], LoadedConfig]
"""Reads the configuration; a `FollowedLoad` also tells when to read it again."""
Apply = Callable[[LoadedConfig, AbstractSet[str]], Awaitable[Changes]]
"""Puts a configuration in force, with the names of drained endpoints."""

# Besides the settings of layers and extensions with `needs_restart`; see `restart_keys`.
_FIXED_KEYS: Final[tuple[KeyPath, ...]] = (
    ("workers",),
    ("security", "strict"),
    ("state",),
    ("telemetry", "log", "format"),
    ("telemetry", "metrics"),
    ("telemetry", "otlp"),
    ("lifecycle", "online"),
    ("lifecycle", "hand_over"),
    ("lifecycle", "reload"),
    ("in_flight_bytes",),
    ("hand_over_bytes",),
    ("hand_over_group",),
    ("in_flight_bytes_per_address",),
)


REQUEST: Final = "request"
"""A request to the admin port asked for the reload."""
SIGNAL: Final = "SIGHUP"
WATCH: Final = "watch"
"""The file has changed."""
SOURCE: Final = "source"
"""What the configuration follows, such as a cluster."""


def _ignore(*_arguments: object) -> None: ...


_NEEDS_RESTART: Final = "this change needs a restart"


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The outcome of a reload.

    Attributes:
        outcome: "applied", "rejected" or "failed".
        source: The file.
        sha256: The hash of the configuration that is in force afterwards.
        before: The hash of the configuration that was in force before.
        changes: What an applied configuration changed, and `certificates`: the sockets whose TLS
            files were replaced since the reload before.
        runtime: Changes of an operator that hold against the file; see `differences`.
        problems: The errors of a rejected one.
        reason: Why a correct configuration could not be applied; "" for no failure.
    """

    outcome: str
    source: str
    sha256: str
    before: str
    changes: Changes = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    reason: str = ""
    runtime: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> str:
        """The errors, one for each line, as `gateway validate` prints them; "" for none."""
        return self.reason or "\n".join(f"{self.source}:{problem}" for problem in self.problems)


@dataclass(frozen=True, slots=True)
class FollowedLoad:
    """Reads a configuration that follows something other than a file.

    Attributes:
        load: Reads it.
        follow: Runs beside the gateway, and calls its argument when it must be read again.
    """

    load: Load
    follow: Callable[[Callable[[], Awaitable[ReloadResult]]], Coroutine[Any, Any, None]]

    def __call__(self) -> LoadedConfig:
        """Return the configuration."""
        return self.load()


class Reloader:
    """Reads the configuration again, and puts it in force.

    Args:
        load: Reads and checks the configuration; called on a thread.
        loaded: The configuration in force.
        apply: Puts another configuration in force.
        clock: Seconds since the epoch.
        leading: The parts of extensions, which may refuse a configuration; None for none.
        manager: Learns of each reload; None for none.

    Attributes:
        metrics: Counts the reloads.
        on_applied: Called with each configuration that was put in force.
        on_reload: Called with what asked for each reload, and with its result.
    """

    def __init__(
        self,
        load: Load,
        loaded: LoadedConfig,
        apply: Apply,
        *,
        clock: Callable[[], float] = time.time,  # noqa: TID251  # a time that operators read
        leading: LeadingParts | None = None,
        manager: ServiceManager | None = None,
    ) -> None:
        self._manager = manager
        self.on_applied: Callable[[LoadedConfig], Awaitable[None]] = _do_nothing
        self.on_reload: Callable[[str, ReloadResult], object] = _ignore
        self._leading = leading
        self._load = load
        self._loaded = loaded
        self._apply = apply
        self._clock = clock
        self._runtime_changes = RuntimeChanges()
        self._lock = asyncio.Lock()
        self._requested = asyncio.Event()
        self._causes: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics = ReloadMetrics(clock())

    @property
    def loaded(self) -> LoadedConfig:
        """The configuration in force, as it is in the file."""
        return self._loaded

    @property
    def runtime_changes(self) -> RuntimeChanges:
        """The changes that are not in the file."""
        return self._runtime_changes

    async def change(self, change: Callable[[RuntimeChanges, Config], RuntimeChanges]) -> None:
        """Put other runtime changes in force.

        Args:
            change: Returns them, given those in force and the configuration of the file.

        Raises:
            LookupError: It names something that the configuration does not have.
            ValueError: It is invalid.
            StartError: It cannot be applied; nothing has changed.
        """
        async with self._lock:
            changes = change(self._runtime_changes, self._loaded.config)
            changes.check(self._loaded)
            loaded = changes.apply(self._loaded)
            await self._apply(loaded, changes.drained)
            if self._leading is not None:
                await self._leading.change(loaded)
            self._runtime_changes = changes
        log.info("runtime changes", **changes.document())

    def handle_signal(self) -> None:
        """Reload at SIGHUP, or ignore it if the configuration says so."""
        wants = self._loaded.config.lifecycle.reload.signal
        handler = partial(self.request, SIGNAL) if wants else _ignore
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handler)

    def request(self, cause: str) -> None:
        """Reload the configuration soon; several requests may become one reload."""
        self._causes.append(cause)
        self._requested.set()

    async def __aenter__(self) -> Self:
        """Begin to reload after each request, and after each change of a file that is watched."""
        log_retired_keys(self._loaded)
        self._tasks = [start_background(self._run(), "reloads")]
        if isinstance(self._load, FollowedLoad):
            following = self._load.follow(partial(self.reload, SOURCE))
            self._tasks.append(start_background(following, "what the configuration follows"))
        settings, loaded = self._loaded.config.lifecycle.reload, self._loaded
        if settings.watch:
            path = Path(loaded.source)
            changed = partial(self.request, WATCH)
            watch = watch_config(path, loaded.sha256, settings.debounce, changed)
            self._tasks.append(start_background(watch, "watch of the configuration"))
        return self

    async def __aexit__(self, *_details: object) -> None:
        """End a reload in progress, and ignore further requests."""
        await end_tasks(*self._tasks)

    async def _run(self) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            causes, self._causes = self._causes, []
            await self.reload(causes[0])

    async def reload(self, cause: str = REQUEST) -> ReloadResult:
        """Read the configuration and put it in force, if it is correct; raise nothing.

        Args:
            cause: What asked for it: `REQUEST`, `SIGNAL`, `WATCH` or `SOURCE`.
        """
        async with self._lock:  # one reload at a time
            if self._manager is not None:
                self._manager.reloading()
            result = await self._reload()
            if self._manager is not None:
                self._manager.reloaded(result.outcome)
        self.metrics.record(result.outcome, self._clock())
        if result.outcome == APPLIED:
            log.info(
                "configuration reloaded",
                cause=cause,
                source=result.source,
                sha256_before=result.before,
                sha256=result.sha256,
                **result.changes,
            )
            log_retired_keys(self._loaded)
            await log_unused_addresses(self._loaded.config)
            if result.runtime:
                log.warning("runtime changes hold against the file", **result.runtime)
        else:
            log.error(
                "configuration not reloaded",
                cause=cause,
                source=result.source,
                sha256=result.sha256,
                error=result.error,
            )
        self.on_reload(cause, result)
        return result

    async def _reload(self) -> ReloadResult:
        old = self._loaded
        try:
            loaded = await self._read(old.config.lifecycle.reload.timeout)
            if self._leading is not None:
                self._leading.check_reload(loaded)
            check_restart(old.config, loaded)
            await asyncio.to_thread(require_files, loaded)
            runtime = self._runtime_changes
            changed = runtime.apply(loaded)
            changes = await self._apply(changed, runtime.drained)
            if self._leading is not None:
                await self._leading.change(changed)
        except ConfigError as error:
            problems = tuple(error.problems)
            return ReloadResult(REJECTED, old.source, old.sha256, old.sha256, problems=problems)
        except StartError as error:
            return ReloadResult(FAILED, old.source, old.sha256, old.sha256, reason=str(error))
        except FAULTS as error:  # a bug, or a backend of the user: the old configuration serves
            log.exception("internal error", source=old.source)
            reason = f"internal error: {type(error).__name__}"
            return ReloadResult(FAILED, old.source, old.sha256, old.sha256, reason=reason)
        self._loaded = loaded
        await self.on_applied(loaded)
        held = differences(runtime, loaded.config)
        changes = {"changed": changed_keys(old.config, loaded.config), **changes}
        return ReloadResult(
            APPLIED, loaded.source, loaded.sha256, old.sha256, changes, runtime=held
        )

    async def _read(self, timeout_s: float) -> LoadedConfig:
        """Read the file on a thread of its own, which a file system that hangs may keep.

        Raises:
            ConfigError: It has errors.
            StartError: It takes too long.
        """
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await on_own_thread(self._load)
        except TimeoutError as error:
            if limit.expired():
                raise StartError(f"reading the file: {RELOAD_LATE}") from error
            raise


async def _do_nothing(_loaded: LoadedConfig) -> None:
    pass


def changed_keys(old: Config, new: Config) -> list[str]:
    """Return the keys whose values differ, down to the second level: `quotas.gold`, `routes.score`.

    Entries of a list have their names, or their numbers from 1.
    """
    found = []
    for key in type(new).model_fields:
        sections = _of_one_kind(getattr(old, key), getattr(new, key))
        if sections[0] != sections[1]:
            before, after = (_entries(each, is_new=None in sections) for each in sections)
            names = dict.fromkeys((*after, *before))
            inner = [name for name in names if after.get(name) != before.get(name)]
            # A plain value has no entries, and the order of a list may be all that differs.
            found += [f"{key}.{name}" for name in inner] or [key]
    return found


def _of_one_kind(old: Any, new: Any) -> tuple[Any, Any]:
    """Return two sections, one that the file does not have with the defaults of the other."""
    if isinstance(old, Model) and isinstance(new, Model) and type(old) is not type(new):
        # Settings of layers extend the kind of a section that the file has.
        return (type(new)(), new) if isinstance(new, type(old)) else (old, type(old)())
    return old, new


def _entries(value: object, *, is_new: bool) -> Mapping[str, object]:
    """Return the parts of a section by their names; those that the file sets if it is new."""
    if isinstance(value, Model):
        keys = value.model_fields_set if is_new else type(value).model_fields
        return {key: getattr(value, key) for key in sorted(keys)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return {getattr(each, "name", None) or str(n): each for n, each in enumerate(value, 1)}
    return {}


def check_restart(old: Config, loaded: LoadedConfig) -> None:
    """Check that *loaded* can replace *old* while the gateway runs.

    Raises:
        ConfigError: The change of a key needs a restart; the error has a problem for each key.
    """
    findings = _fixed_findings(old, loaded.config)
    problems = [loaded.problem(path, message) for path, message in findings]
    if problems:
        raise ConfigError(loaded.source, problems)


def restart_keys() -> tuple[KeyPath, ...]:
    """Return the keys that a reload does not change; the chart replaces the pods for them."""
    admin = (("admin", key) for key in AdminConfig.model_fields if key not in _OF_EACH_REQUEST)
    return (*_same_values(), ("listeners",), *admin)


def _same_values() -> tuple[KeyPath, ...]:
    own = ((each.key,) for each in settings() if each.needs_restart and "top" in each.places)
    return (*_FIXED_KEYS, *own)


def _fixed_findings(old: Config, new: Config) -> Iterator[Finding]:
    for path in _same_values():
        if _value(old, path) != _value(new, path):
            yield path, _NEEDS_RESTART
    if _admin_addresses(old) != _admin_addresses(new):
        yield ("admin",), _NEEDS_RESTART
    before = {listener.name: listener for listener in old.listeners}
    for index, listener in enumerate(new.listeners):
        at: KeyPath = ("listeners", index)
        if listener.name not in before:
            yield at, f"a new listener: {_NEEDS_RESTART}"
        else:
            yield from _listener_findings(at, before[listener.name], listener)
            yield from _path_findings(at, (before[listener.name], old), (listener, new))
    for name in before.keys() - {listener.name for listener in new.listeners}:
        yield ("listeners",), f"listener {name!r} is missing: {_NEEDS_RESTART}"


def _listener_findings(at: KeyPath, old: ListenerConfig, new: ListenerConfig) -> Iterator[Finding]:
    for key in type(new).model_fields:
        if getattr(old, key) != getattr(new, key):
            yield (*at, key), _NEEDS_RESTART


def _path_findings(
    at: KeyPath, old: tuple[ListenerConfig, Config], new: tuple[ListenerConfig, Config]
) -> Iterator[Finding]:
    """Yield what another protocol of the server behind a listener changes, which has its paths."""
    is_equal = old[0] == new[0]
    if is_equal and _paths(*old) != _paths(*new):
        yield (*at, "passthrough"), f"its upstream has another protocol: {_NEEDS_RESTART}"


def _paths(listener: ListenerConfig, config: Config) -> Mapping[str, ProtocolPaths]:
    return owned_paths(listener, config.upstreams)


# The keys of `admin` that decide about each request.
_OF_EACH_REQUEST: Final = {"token", "tokens", "local", "open", "hosts", "remote_changes"}


def _admin_addresses(config: Config) -> dict[str, Any] | None:
    """Return the keys of `admin` but those that decide about each request."""
    if config.admin is None:
        return None
    return config.admin.model_dump(exclude=_OF_EACH_REQUEST)


def _value(config: Any, path: KeyPath) -> Any:
    for key in path:
        config = getattr(config, str(key))
    return config
