"""The configuration of a shadow process."""

from __future__ import annotations

from gateway.config.load import load_text
from gateway.migration.mirror.targets import shadow_config

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", default_model: house}]
state: {directory: state}
upstreams: {old: {url: "mlflow+http://127.0.0.1:1"}, new: {url: "oip+http://127.0.0.1:2"}}
routes: [{name: r, targets: [{upstream: old}, {upstream: new, model: next, weight: 0}]}]
models:
  house: {protocols: {mlflow: {column_names: [b, a]}}}
  next: {signature: {inputs: [{name: X, datatype: FP64, shape: [-1, 2]}]}}
migrations: {m: {route: r, old: old, new: new/next}}
"""


def test_the_new_target_reads_the_columns_of_clients() -> None:
    """The routes that tell its other name are left out."""
    config = load_text(CONFIG).config
    models = shadow_config(config).models
    assert models["next"].protocols == {"mlflow": {"column_names": ["b", "a"]}}
    assert models["next"].model_copy(update={"protocols": {}}) == config.models["next"]
    assert models["house"] == config.models["house"]
