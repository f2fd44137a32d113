"""The paths of a listener, in both dialects, and those of requests to an upstream.

Source: docs/protocols/tensorflow-serving.md, "2. What is served" and "10. KServe V1".
"""

import enum
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.ir.errors import InvalidRequest, NotFound
from gateway.ir.limits import MessageLimits
from gateway.protocols.tfs.errors import ForeignPath, FrameworkError
from gateway.protocols.tfs.models import Spec
from gateway.protocols.tfs.options import ROOT, read_options
from gateway.wire.errors import SlashAtEnd, method_not_allowed
from gateway.wire.heads.path_claims import ClaimKind, Passing, PathClaim
from gateway.wire.heads.url_names import decoded_name, url_segment

MODELS: Final = "/v1/models"
_VERSION_END: Final = 1 << 63
_SHOWN: Final = 200
_GET: Final = frozenset({"GET", "HEAD"})
_PATH: Final = re.compile(
    r"/v1/models(?:/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?"
    r"(?::(predict|classify|regress)|/(metadata))?)?",
    re.IGNORECASE,
)
_KSERVE_PATH: Final = re.compile(r"/v1/models(?:/([^/]+?)(?::([^/:]*))?)?")
_COLON: Final = re.compile("%3a", re.IGNORECASE)
_MODELS_CLAIM: Final = PathClaim(MODELS, ClaimKind.SHARED, Passing.NAMED)


class Verb(enum.Enum):
    """What a path asks for."""

    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"
    EXPLAIN = "explain"
    STATUS = "status"
    METADATA = "metadata"
    MODELS = "models"
    LIVE = "live"

    __hash__ = object.__hash__


class RestPath(NamedTuple):
    """What a path asks for, and of which model."""

    verb: Verb
    spec: Spec = Spec()


_VERBS: Final = {each.value: each for each in (Verb.PREDICT, Verb.CLASSIFY, Verb.REGRESS)}


def claims(options: Mapping[str, Any]) -> tuple[PathClaim, ...]:
    """Return the paths of a listener, with those that its options add.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read, found = read_options(options), [_MODELS_CLAIM]
    if read.root:  # a sidecar: a client without a key looks there for what the server is
        found = [_MODELS_CLAIM._replace(passes=Passing.UNKEYED)]
    if read.vertex is not None:
        predict, health = read.vertex.predict, read.vertex.health
        found.append(PathClaim(predict, is_whole=True, option="vertex"))
        if health != predict:
            found.append(PathClaim(health, is_whole=True, is_public=True, option="vertex"))
    option = "dialect" if read.is_kserve else "cloudevents" if read.cloudevents else "root"
    has_root = read.is_kserve or read.cloudevents or read.root
    if has_root and ROOT not in {each.path for each in found}:
        found.append(PathClaim(ROOT, is_whole=True, option=option))
    return tuple(found)


def tensorflow_path(method: str, path: str, limits: MessageLimits) -> RestPath:
    """Return what a path of TensorFlow Serving asks for; letters of either case are the same.

    Raises:
        ForeignPath: It does not begin with `/v1/`.
        InvalidRequest: It is malformed, or has a version beyond 64 bits.
    """
    found = _PATH.fullmatch(_COLON.sub(":", path))
    if found is None:
        if not path.lower().startswith("/v1/"):
            raise ForeignPath(f"nothing is served at {path[:_SHOWN]!r}")
        raise _malformed(method, path)
    name, version, label, word, metadata = found.groups()
    verb = Verb.METADATA if metadata else _VERBS[word.lower()] if word else Verb.STATUS
    is_question = verb in (Verb.METADATA, Verb.STATUS)
    if (method not in _GET) if is_question else (method != "POST"):
        raise _malformed(method, path)
    if name is None:
        return RestPath(Verb.MODELS)
    number = 0
    if version:
        number = int(version) if len(version) <= len(str(_VERSION_END)) else _VERSION_END
        if number >= _VERSION_END:
            raise InvalidRequest(f"Failed to convert version: {version[:_SHOWN]} to numeric.")
    spec = Spec(
        decoded_name("model name", name, limits),
        number,
        decoded_name("version label", label, limits) if label else "",
    )
    return RestPath(verb, spec)


def kserve_path(method: str, path: str, limits: MessageLimits) -> RestPath:
    """Return what a path of KServe V1 asks for.

    Raises:
        SlashAtEnd: It has a slash at its end, and another path is meant.
        FrameworkError: It does not exist, or does not allow the method.
        NotFound: A method asks about a model whose name has a verb.
    """
    if path == "/":
        if method not in _GET:
            raise method_not_allowed(method, path, "GET")
        return RestPath(Verb.LIVE)
    if path.endswith("/"):
        raise SlashAtEnd(path.rstrip("/") or "/")
    found = _KSERVE_PATH.fullmatch(_COLON.sub(":", path))
    if found is None:
        raise FrameworkError("Not Found")
    name, verb = found.groups()
    if name is None:
        if method not in _GET:
            raise method_not_allowed(method, path, "GET")
        return RestPath(Verb.MODELS)
    spec = Spec(decoded_name("model name", name, limits))
    if method in _GET:
        if verb is not None:
            raise NotFound(f"Model with name {spec.name}:{verb} does not exist.")
        return RestPath(Verb.STATUS, spec)
    if method == "POST" and verb in ("predict", "explain"):
        return RestPath(Verb.PREDICT if verb == "predict" else Verb.EXPLAIN, spec)
    raise method_not_allowed(method, path, "POST" if verb in ("predict", "explain") else "GET")


def upstream_path(name: str, version: int, rest: str) -> str:
    """Return the path of a request to a server.

    Args:
        name: Name of the model.
        version: The number of its version; 0 for none.
        rest: A verb such as ":predict", or "/metadata", or nothing.
    """
    versions = f"/versions/{version}" if version else ""
    return f"{MODELS}/{url_segment(name).replace(':', '%3A')}{versions}{rest}"


def _malformed(method: str, path: str) -> InvalidRequest:
    return InvalidRequest(f"Malformed request: {method[:32]} {path[:_SHOWN]}")
