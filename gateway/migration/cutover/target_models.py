"""What both targets of a cut-over say of their models, and whether a target has another one."""

import json
from typing import Any, Final

_MAX_MODELS: Final = 64

_Models = dict[str, dict[str, Any]]
"""What is known of each model at each target."""


def _models_of(text: str) -> _Models:
    """Return `CutoverState.models` as values; earlier versions of the gateway wrote lists."""
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def has_changed(before: str, now: str) -> bool:
    """Return whether a target has another model than was known; an unknown one is no other."""
    if before == now:
        return False
    known = _models_of(before)
    return any(
        known.get(model, {}).get(target, identity) != identity
        for model, targets in _models_of(now).items()
        for target, identity in targets.items()
    )


def known_models(before: str, now: str) -> str:
    """Return what is known of all models; a target that does not reply keeps the model it had."""
    if before == now or not now:
        return before
    known, found = _models_of(before), _models_of(now)
    for model, targets in found.items():
        found[model] = {**known.get(model, {}), **targets}
    older = [model for model in known if model not in found]
    found |= {model: known[model] for model in older[: _MAX_MODELS - len(found)]}
    return json.dumps(found, sort_keys=True)
