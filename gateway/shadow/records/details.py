"""The details of a recorded call: what few calls have, as one JSON object."""

import json
from typing import Any

from msgspec import to_builtins

from gateway.ir.calls import InferRequest
from gateway.ir.context import Context
from gateway.ir.identity import ANONYMOUS
from gateway.ir.text_tasks import Generate, TextTask
from gateway.shadow.records.privacy import Privacy


def details_of(request: InferRequest | None, context: Context, privacy: Privacy) -> dict[str, Any]:
    """Return what a row keeps of a call beside its columns; nothing of the request if it is None.

    Args:
        request: The inference.
        context: The context of the call.
        privacy: What is recorded.
    """
    details: dict[str, Any] = {}
    if request is not None:
        if request.id:
            details["id"] = request.id
        if request.priority:
            details["priority"] = request.priority
        if request.timeout_us:
            details["timeout_us"] = request.timeout_us
        if request.batch_size:
            details["batch_size"] = request.batch_size
        if request.outputs:
            details["outputs"] = [[each.name, each.classes] for each in request.outputs]
        if request.parameters or request.flat_members or _has_members(request.texts):
            details["has_parameters"] = True
        if request.texts is not None:
            details |= _text_details(request.texts, privacy)
        if request.flat_members and privacy.payload == "full" and privacy.parameters:
            details["flat_members"] = {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in request.flat_members.items()
            }
    return details | _sender_details(context, privacy)


def _sender_details(context: Context, privacy: Privacy) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if context.client.identity is not ANONYMOUS:
        details["client_name"] = context.client.identity.name
    if privacy.headers:
        details["headers"] = [pair for pair in context.metadata if pair[0] in privacy.headers]
    return details


def _has_members(task: TextTask | None) -> bool:
    return isinstance(task, Generate) and bool(task.members or task.stop)


def _text_details(task: TextTask, privacy: Privacy) -> dict[str, Any]:
    """Return a task on texts, whose members are parameters of the caller."""
    is_kept = privacy.parameters or not _has_members(task)
    return {"texts": to_builtins(task)} if is_kept else {}


def details_with_refusal(text: str, is_refused: bool) -> str:
    """Return details as JSON, with whether the gateway itself refused the call."""
    details = json.loads(text)
    if is_refused is bool(details.pop("refused", False)):
        return text
    return json.dumps(details | ({"refused": True} if is_refused else {}))


def members_of(members: dict[str, Any]) -> dict[str, Any]:
    """Return flat members of a request as they were before JSON made lists of them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in members.items()
    }
