"""Changes of captures and weights that an operator makes while the gateway runs."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.migration.options import privacy_of
from gateway.migration.settings import CAPTURE
from gateway.migration.targets import live_migrations

_MAX_PERCENT: Final = 100


def apply_changes(loaded: LoadedConfig, changes: Mapping[str, Any]) -> LoadedConfig:
    """Return the configuration with another `capture`, and check the weights of targets.

    Args:
        loaded: The configuration in force.
        changes: `capture` has keys of `capture` and their values; all others are as in the file.
            `weights` has weights by route and target.

    Raises:
        LookupError: The configuration has no capture.
        ValueError: A value of the capture is invalid, or a cut-over moves the target.
    """
    _check_weights(loaded.config, changes.get("weights", {}))
    if "capture" not in changes:
        return loaded
    capture, changed = CAPTURE.of(loaded.config), changes["capture"]
    if capture is None:
        raise LookupError("nothing can be captured; expected 'capture' in the configuration")
    percent = changed.get("percent", 100.0)
    if not 0 < percent <= _MAX_PERCENT:
        raise ValueError(f"percent is {percent:g}; expected more than 0 and at most 100")
    capture = capture.model_copy(update=dict(changed))
    privacy_of(capture)
    return loaded.changed(capture=capture)


def _check_weights(config: Config, weights: Mapping[str, Mapping[str, int]]) -> None:
    for live in live_migrations(config):
        if live.config.cutover and live.new_name in weights.get(live.route, {}):
            raise ValueError(
                f"the cut-over of migration {live.name!r} moves calls to {live.new_name!r}; "
                "expected 'gateway cutover' for its weight"
            )
