"""What gateways of one cut-over share in a Kubernetes cluster, in the namespace of their pods.

A Lease elects the one that leads. A ConfigMap has the state, and one more for each gateway has what
it reports. All methods but `events` wait for the API server, and belong in threads.
"""

import copy
import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import structlog
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from gateway.api.start_error import StartError, reason_of
from gateway.migration.cutover.files import (
    StateConflict,
    decode_events,
    decode_state,
    encode_event,
    encode_state,
)
from gateway.migration.cutover.steps import CutoverEvent, CutoverState
from gateway.transports.net.look_up import require_known

log = structlog.get_logger(__name__)

_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# For connecting, and for each read after it.
_TIMEOUT_S: Final = (1.0, 1.0)
# After a call has failed, further ones fail at once for this time.
_PAUSE_S: Final = 2.0

# A gateway leads until its Lease has not been renewed for this time.
_LEASE_S: Final = 15
# The one that leads stops before others may begin.
_RENEWED_WITHIN_S: Final = 10.0
_RENEW_S: Final = 3.0
# A gateway whose report has not changed for this time is gone.
_GONE_S: Final = 15.0
_FORGOTTEN_S: Final = 60.0
_REPORT_S: Final = 5.0

_EVENTS: Final = 100
_LABEL: Final = "tensor-gateway/cutover"
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_MIGRATION_LENGTH: Final = 40
_REPLICA_LENGTH: Final = 63


class ApiUnreachable(OSError):
    """The API server does not reply, or not as it should."""


class ApiConflict(OSError):
    """An object has another version than expected: it was changed, made or removed."""


class ApiServer:
    """The API server of the cluster, as the service account of the pod reaches it.

    Args:
        monotonic: Monotonic seconds.

    Attributes:
        namespace: The namespace of the pod.
        trouble: Why the last call failed; "" if it did not.
        leases: The calls for Leases.
        objects: The calls for ConfigMaps.

    Raises:
        StartError: This is no pod, or it has no service account.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        options = client.Configuration()
        options.retries = False
        try:
            config.load_incluster_config(options)
            self.namespace = _NAMESPACE.read_text(encoding="utf-8").strip()
        except (config.ConfigException, OSError) as error:
            reason = reason_of(error)
            raise StartError(
                f"'coordinate: kubernetes' needs a pod with a service account: {reason}"
            ) from error
        self._client = client.ApiClient(options)
        self._host = urlsplit(options.host).hostname or ""
        self.leases = client.CoordinationV1Api(self._client)
        self.objects = client.CoreV1Api(self._client)
        self._monotonic = monotonic
        self._again_s = -_PAUSE_S
        self.trouble = ""
        # What a warning was about: calls that are refused, and "" for no usable reply at all.
        self._warned: set[str] = set()

    def call(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        """Call the API server; return None if there is no such object.

        Raises:
            ApiConflict: The object has changed, or exists already.
            ApiUnreachable: There is no usable reply. One warning says so.
        """
        if self._monotonic() < self._again_s:
            raise ApiUnreachable(self.trouble)
        found = None
        try:
            require_known(self._host, _TIMEOUT_S[0])
            found = function(*values, _request_timeout=_TIMEOUT_S, **options)
        except client.ApiException as error:
            if error.status == HTTPStatus.CONFLICT:
                self._replied(function.__name__)
                raise ApiConflict(_message(error)) from error
            if error.status != HTTPStatus.NOT_FOUND:
                is_refused = 0 < error.status < HTTPStatus.INTERNAL_SERVER_ERROR
                text = f"the API server of Kubernetes replied {error.status} {_message(error)}"
                self._failed(function.__name__ if is_refused else "", text)
                raise ApiUnreachable(text) from error
        except (HTTPError, OSError, ValueError, config.ConfigException) as error:
            text = f"the API server of Kubernetes cannot be reached: {error}"
            self._failed("", text)
            raise ApiUnreachable(text) from error
        self._replied(function.__name__)
        return found

    def close(self) -> None:
        """Close the connections; idempotent. Another call would open them again."""
        self._client.close()

    def _failed(self, key: str, text: str) -> None:
        self._again_s = self._monotonic() + _PAUSE_S
        self.trouble = text
        if key not in self._warned:
            self._warned.add(key)
            log.warning("Kubernetes unreachable", reason=text)

    def _replied(self, function: str) -> None:
        self.trouble = ""
        if self._warned & {"", function}:
            self._warned -= {"", function}
            log.info("Kubernetes reachable again")


def _micro_time(clock: Callable[[], float]) -> datetime:
    """Return the time of day; Kubernetes wants microseconds, which 0 would leave out."""
    now = datetime.fromtimestamp(clock(), UTC)
    return now.replace(microsecond=max(1, now.microsecond))


class ClusterReplicas:
    """The gateways of one cut-over in a cluster, and its state.

    Args:
        api: The API server.
        migration: The name of the migration; no other one in the namespace may have it.
        name: The name of this gateway.
        clock: Seconds since the epoch, for people who read the objects.
        monotonic: Monotonic seconds. The clocks of the machines need not agree.
    """

    def __init__(
        self,
        api: ApiServer,
        migration: str,
        name: str,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        # A process that is started again must not take itself for the one before.
        self._name = f"{name}-{secrets.token_hex(4)}"
        self._object = f"tensor-gateway-{_dns_label(migration, _MIGRATION_LENGTH)}"
        self._report = f"{self._object}.{_dns_label(self._name, _REPLICA_LENGTH)}"
        self._where = f"ConfigMap {api.namespace}/{self._object}"
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._is_over = False
        self._is_leader = False
        self._renewed_s = 0.0
        self._elect_s = monotonic()
        # Version of the Lease of another gateway, and when it was first seen.
        self._watched: tuple[str, float] = ("", 0.0)
        self._map: Any = None
        # Version of the ConfigMap that the caller has seen.
        self._known: str | None = None
        self._aside: str | None = None
        self._published: Mapping[str, Any] = {}
        self._published_s = 0.0
        # Version of each report, and when it was first seen.
        self._reports: dict[str, tuple[str, float]] = {}

    @property
    def trouble(self) -> str:
        """Why nobody can be elected at present; "" if that is possible."""
        return self._api.trouble

    def try_lead(self) -> bool:
        """Return whether this gateway holds the Lease, which is renewed in time."""
        with self._lock:
            try:
                self._is_leader = not self._is_over and self._elect(self._monotonic())
            except (ApiConflict, ApiUnreachable):  # the latter has been logged
                self._is_leader = False
            return self._is_leader

    def _elect(self, now: float) -> bool:
        if self._is_leader and now - self._renewed_s < _RENEW_S:
            return True
        if now < self._elect_s:
            return False
        lease = self._api.call(
            self._api.leases.read_namespaced_lease, self._object, self._api.namespace
        )
        if lease is None:
            lease = client.V1Lease(metadata=client.V1ObjectMeta(name=self._object))
        spec = lease.spec = lease.spec or client.V1LeaseSpec()
        is_own = spec.holder_identity == self._name
        if spec.holder_identity and not is_own and not self._is_silent(lease, now):
            self._elect_s = now + _RENEW_S
            return False
        spec.lease_duration_seconds = _LEASE_S
        spec.renew_time = _micro_time(self._clock)
        if not is_own:
            spec.holder_identity = self._name
            spec.acquire_time = spec.renew_time
            spec.lease_transitions = (spec.lease_transitions or 0) + 1
        self._put(self._api.leases, "lease", lease)
        self._renewed_s = now
        if not is_own:
            self._known = None
        if not self._is_leader:
            self._read()
        return True

    def _is_silent(self, lease: Any, now: float) -> bool:
        """Return whether the holder of a Lease has not renewed it in time."""
        version = lease.metadata.resource_version
        if self._watched[0] != version:
            self._watched = version, now
        return now - self._watched[1] >= (lease.spec.lease_duration_seconds or _LEASE_S)

    def _put(self, calls: Any, kind: str, value: Any) -> Any:
        """Create or replace an object, and return it as it is then.

        Raises:
            ApiConflict: It is not of the version that *value* has.
            ApiUnreachable: There is no usable reply.
        """
        if value.metadata.resource_version is None:
            create = getattr(calls, f"create_namespaced_{kind}")
            found = self._api.call(create, self._api.namespace, value)
        else:
            replace = getattr(calls, f"replace_namespaced_{kind}")
            found = self._api.call(replace, value.metadata.name, self._api.namespace, value)
        if found is None:
            raise ApiConflict(f"{value.metadata.name} has been removed")
        return found

    def _read(self) -> None:
        self._map = self._api.call(
            self._api.objects.read_namespaced_config_map, self._object, self._api.namespace
        )

    def release(self) -> None:
        """Give the Lease up; idempotent. If that fails, it runs out."""
        with self._lock:
            self._is_over = True
            if not self._is_leader:
                return
            self._is_leader = False
            leases = self._api.leases
            try:
                lease = self._api.call(
                    leases.read_namespaced_lease, self._object, self._api.namespace
                )
                if lease is not None and lease.spec.holder_identity == self._name:
                    lease.spec.holder_identity = ""
                    lease.spec.renew_time = _micro_time(self._clock)
                    self._put(leases, "lease", lease)
            except (ApiConflict, ApiUnreachable):
                log.info("Lease not given up", lease=self._object)

    def load(self, digest: str) -> CutoverState | None:
        """Return the state of the plan with this hash; None if it is known or out of reach.

        Raises:
            UnusableState: It is damaged, or the state of another plan.
        """
        with self._lock:
            if not self._is_leader:
                try:
                    self._read()
                except ApiUnreachable:  # the weights stay
                    return None
            if self._known == self._version():
                return None
            self._known = self._version()
            text = self._data().get("state")
            return None if text is None else decode_state(self._where, text.encode(), digest)

    def _data(self) -> dict[str, str]:
        return {} if self._map is None else self._map.data or {}

    def _version(self) -> str | None:
        return None if self._map is None else str(self._map.metadata.resource_version)

    def save(self, digest: str, state: CutoverState) -> None:
        """Replace the state, if it is the one that was read or written last.

        Raises:
            StateConflict: It is not, or the Lease is lost.
            ApiUnreachable: There is no usable reply.
        """
        changes = {"state": encode_state(digest, state).decode()}
        if self._aside is not None:
            changes["state.unusable"] = self._aside
        self._change(changes)
        self._aside = None

    def set_aside(self) -> None:
        """Keep a state that cannot be used under another key, when the next one is saved."""
        self._aside = self._data().get("state")

    def append(self, event: CutoverEvent, state: CutoverState, at_s: float) -> None:
        """Add an event to the last ones.

        Raises:
            StateConflict: Another gateway has changed the state, or the Lease is lost.
            ApiUnreachable: There is no usable reply.
        """
        line = encode_event(event, state, at_s).decode()
        lines = [*self._data().get("events", "").splitlines(), line]
        self._change({"events": "\n".join(lines[-_EVENTS:]) + "\n"})

    def _change(self, changes: Mapping[str, str]) -> None:
        with self._lock:
            if not self._is_leader or self._monotonic() - self._renewed_s > _RENEWED_WITHIN_S:
                self._is_leader = False
                raise StateConflict(f"the Lease {self._object} is lost")
            if self._known != self._version():
                raise StateConflict(f"{self._where} has changed")
            metadata = client.V1ObjectMeta(name=self._object)
            changed = copy.copy(self._map) or client.V1ConfigMap(metadata=metadata)
            changed.data = {**self._data(), **changes}
            try:
                self._map = self._put(self._api.objects, "config_map", changed)
            except ApiConflict as error:
                self._is_leader = False
                raise StateConflict(f"{self._where} has changed") from error
            self._known = self._version()

    def events(self) -> list[dict[str, Any]]:
        """Return the last events that are known here, the latest last."""
        lines = self._data().get("events", "").encode().splitlines()
        return list(decode_events(lines))

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace what the leader reads of this gateway, unless it leads itself."""
        with self._lock:
            now = self._monotonic()
            is_told = document == self._published and now - self._published_s < _REPORT_S
            if self._is_leader or self._is_over or is_told:
                return
            body = client.V1ConfigMap(
                metadata=client.V1ObjectMeta(name=self._report, labels={_LABEL: self._object}),
                data={"report": json.dumps(document), "at": _micro_time(self._clock).isoformat()},
            )
            objects, namespace = self._api.objects, self._api.namespace
            try:
                replace = objects.replace_namespaced_config_map
                if self._api.call(replace, self._report, namespace, body) is None:
                    self._put(objects, "config_map", body)
            except (ApiConflict, ApiUnreachable):
                return  # a warning has said so; the next one follows in a second
            self._published, self._published_s = document, now

    def others(self) -> list[tuple[str, dict[str, Any]]]:
        """Return name and document of each other gateway that has written lately.

        Raises:
            ApiUnreachable: There is no usable reply.
        """
        with self._lock:
            try:
                listed = self._api.call(
                    self._api.objects.list_namespaced_config_map,
                    self._api.namespace,
                    label_selector=f"{_LABEL}={self._object}",
                )
            except ApiUnreachable:
                self._is_leader = False
                raise
            now, before = self._monotonic(), self._reports
            self._reports = {}
            found = []
            for each in () if listed is None else listed.items:
                name, version = each.metadata.name, each.metadata.resource_version
                seen = before.get(name, ("", 0.0))
                seen = seen if seen[0] == version else (version, now)
                self._reports[name] = seen
                document = _document(each)
                if now - seen[1] >= _FORGOTTEN_S:
                    self._remove(name)
                elif name != self._report and now - seen[1] < _GONE_S and document is not None:
                    found.append((name, document))
            return found

    def remove(self) -> None:
        """Remove what the leader reads of this gateway; idempotent."""
        with self._lock:
            if not self._published:
                return
            self._published = {}
            try:
                self._remove(self._report)
            except ApiUnreachable:
                log.info("report not removed", config_map=self._report)

    def _remove(self, name: str) -> None:
        self._api.call(self._api.objects.delete_namespaced_config_map, name, self._api.namespace)


def _dns_label(text: str, length: int) -> str:
    """Return a text as a part of the name of an object; a hash stands for what does not fit."""
    if len(text) <= length and _DNS_LABEL.fullmatch(text):
        return text
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower())[: length - len(digest) - 1].strip("-")
    return f"{slug}-{digest}".lstrip("-")


def _message(error: client.ApiException) -> str:
    """Return what the API server says of an error."""
    try:
        return str(orjson.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


def _document(config_map: Any) -> dict[str, Any] | None:
    """Return the report of a gateway; None if the object has none."""
    try:
        found = orjson.loads((config_map.data or {})["report"])
    except (KeyError, ValueError):
        return None
    return found if isinstance(found, dict) else None
