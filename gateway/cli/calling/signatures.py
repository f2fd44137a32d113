"""Signatures of models from a file, where no server tells them."""

from pathlib import Path

from pydantic import ValidationError

from gateway.cli.output import WRONG_USAGE, fail
from gateway.config.yaml_tree import read_tree
from gateway.settings.signature import SignatureConfig


def load_signatures(path: Path) -> dict[str, SignatureConfig]:
    """Return the signatures of a file by model; "" is every model.

    A file without signatures ends the command.

    Args:
        path: A file with `inputs`, `outputs` and `max_batch_size`, or a configuration.
    """
    try:
        tree = read_tree(path.read_text(encoding="utf-8"), {}, path.parent)
        if tree.problems or not isinstance(tree.value, dict):
            reason = tree.problems[0].message if tree.problems else "expected a mapping"
            fail(f"{path}: {reason}", WRONG_USAGE)
        models = tree.value.get("models")
        if not isinstance(models, dict):
            return {"": SignatureConfig.model_validate(tree.value)}
        return {
            name: SignatureConfig.model_validate(each["signature"])
            for name, each in models.items()
            if isinstance(each, dict) and "signature" in each
        }
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        fail(f"{path}: {key}: {first['msg']}" if key else f"{path}: {first['msg']}", WRONG_USAGE)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {error}", WRONG_USAGE)
