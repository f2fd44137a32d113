"""The rules of a model's outputs, from the configuration of a migration."""

from gateway.migration.compare.rules import EXACT, IGNORE, OutputRule, OutputRules
from gateway.migration.settings import CompareConfig, RuleChoice


def rules_of(config: CompareConfig) -> OutputRules:
    """Return the rules of a configuration."""
    outputs = {name: _rule_of(choice) for name, choice in config.outputs.items()}
    return OutputRules(_rule_of(config.default), outputs)


def _rule_of(choice: RuleChoice) -> OutputRule:
    if choice == "exact":
        return EXACT
    if choice == "ignore":
        return IGNORE
    return OutputRule(**choice.model_dump())
