"""The rules of a model's outputs, from the configuration of a migration."""

from collections.abc import Callable

from gateway.api.comparison import ComparisonRule
from gateway.migration.compare.rules import EXACT, IGNORE, OutputRule, OutputRules
from gateway.migration.settings import CompareConfig, RuleChoice

FindRule = Callable[[str], ComparisonRule]


def rules_of(config: CompareConfig, find: FindRule) -> OutputRules:
    """Return the rules of a configuration.

    Args:
        config: The configuration.
        find: Returns a rule of an installed package by its name.

    Raises:
        LookupError: A package has no such rule.
    """
    outputs = {name: _rule_of(choice, find) for name, choice in config.outputs.items()}
    return OutputRules(_rule_of(config.default, find), outputs)


def _rule_of(choice: RuleChoice, find: FindRule) -> OutputRule:
    if choice == "exact":
        return EXACT
    if choice == "ignore":
        return IGNORE
    rule = None if choice.rule is None else find(choice.rule)
    return OutputRule(**choice.model_dump(exclude={"rule"}), rule=rule)
