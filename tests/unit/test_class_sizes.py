"""The sizes of classes: a reader meets few that do many things."""

import ast
from pathlib import Path

import gateway

ROOT = Path(gateway.__file__).parent
MANY, LARGEST, FEW = 20, 28, 8


def test_few_classes_have_many_methods() -> None:
    """At most 8 classes have more than 20 methods of their own, and none more than 28."""
    found = {}
    for path in ROOT.rglob("*.py"):
        if "schema" in path.relative_to(ROOT).parts:
            continue  # generated
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = sum(
                    isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body
                )
                found[f"{path.relative_to(ROOT)}: {node.name}"] = methods
    large = {name: count for name, count in found.items() if count > MANY}
    assert len(large) <= FEW, large
    assert max(large.values(), default=0) <= LARGEST, large
