"""The paths of GraphPipe over HTTP: the model of a URL, and the URL of a model.

In GraphPipe a URL is a model, and no message names one.  A path below /graphpipe/ names its model;
any other path is the listener's default model.  A trailing slash is ignored, because clients lose
their body on a redirect.

Source: docs/protocols/graphpipe.md, "7. HTTP".
"""

from typing import Final

from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, NotFound
from gateway.ir.limits import MessageLimits
from gateway.wire.heads.url_names import decoded_name, url_segment

PREFIX: Final = "/graphpipe"
PATTERN: Final = "/graphpipe/<model>[/<version>]"
IS_ALIVE: Final = "/control/is_alive"
IS_READY: Final = "/control/is_ready"

_VERSIONS: Final = "versions"
_SHOWN: Final = 200


def find_model(
    path: str, query: str, default: ModelRef | None, limits: MessageLimits
) -> ModelRef | None:
    """Return the model of a URL; None when it names none.

    Args:
        path: The path of the request, percent-encoded.
        query: `model=m&version=v` is read where the path names no model.
        default: The listener's.
        limits: For the length of names.

    Raises:
        NotFound: The path is below /graphpipe/ and names no model.
        MalformedMessage: A name in it is not percent-encoded UTF-8.
        InvalidRequest: A name is invalid.
    """
    parts = path.removesuffix("/").split("/")
    if len(parts) > 2 and "/" + parts[1] == PREFIX:  # noqa: PLR2004  # "", "graphpipe", model
        return _named(path, parts[2:], limits)
    return _queried(query, limits) or default


def no_model(path: str) -> NotFound:
    """Return the error for a URL that names no model."""
    return NotFound(
        f"the path {path[:_SHOWN]!r} names no model and this listener has no default model: "
        f"post to {PATTERN}"
    )


def model_path(model: ModelRef) -> str:
    """Return the path of *model*.

    Raises:
        Unsupported: Its name or version would be a step in the path.
    """
    steps = [PREFIX]
    steps += [url_segment(step) for step in (model.name, model.version) if step]
    return "/".join(steps)


def _named(path: str, parts: list[str], limits: MessageLimits) -> ModelRef:
    if len(parts) == 3 and parts[1] == _VERSIONS:  # noqa: PLR2004  # model, "versions", version
        parts = [parts[0], parts[2]]
    if len(parts) > 2 or not all(parts):  # noqa: PLR2004  # model and version
        raise NotFound(f"path {path[:_SHOWN]!r} does not exist: GraphPipe has {PATTERN}")
    version = decoded_name("model version", parts[1], limits) if len(parts) > 1 else ""
    return ModelRef(decoded_name("model name", parts[0], limits), version)


def _queried(query: str, limits: MessageLimits) -> ModelRef | None:
    if "model=" not in query:
        return None
    given: dict[str, str] = {}
    for pair in query.split("&"):
        key, _, value = pair.partition("=")
        if key not in {"model", "version"}:
            continue
        if key in given:
            raise InvalidRequest(f"the query names {key!r} twice")
        given[key] = decoded_name(f"{key} in the query", value, limits)
    if not given.get("model"):
        return None
    return ModelRef(given["model"], given.get("version", ""))
