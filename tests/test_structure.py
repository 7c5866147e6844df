"""Sizes of functions and classes of the package, and the modules that may change a run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jaxrl_sql"
LINES, ATTRIBUTES = 60, 20
Function = ast.FunctionDef | ast.AsyncFunctionDef
RUN = "TrainingRun"
# The module that defines the run may change its status.
OWNER = "training/training_run.py"


def sources() -> dict[str, ast.Module]:
    """Return the syntax tree of each module by its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


SOURCES = sources()


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the annotated fields of a class and the attributes that its methods assign."""
    fields = (field.target for field in node.body if isinstance(field, ast.AnnAssign))
    names = {field.id for field in fields if isinstance(field, ast.Name)}
    for method in node.body:
        if isinstance(method, Function) and method.args.args:
            this = method.args.args[0].arg
            names |= {
                target.attr
                for target in assigned(method)
                if isinstance(target.value, ast.Name) and first_name(target) == this
            }
    return names


def first_name(node: ast.expr) -> str:
    """Return the name at the start of attributes and items, such as `a` for `a.b[0].c`; "" otherwise."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def assigned(node: ast.AST) -> list[ast.Attribute]:
    """Return the attributes that a node assigns or deletes."""
    return [
        inner
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store | ast.Del)
    ]


def items(node: ast.AST) -> list[ast.Subscript]:
    """Return the items that a node assigns or deletes, such as `a.b[0]`."""
    return [
        inner
        for inner in ast.walk(node)
        if isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store | ast.Del)
    ]


def too_large(file: str, tree: ast.Module) -> Iterator[str]:
    """Yield the functions over LINES and the classes over ATTRIBUTES of a module."""
    for node in ast.walk(tree):
        is_long = isinstance(node, Function) and (node.end_lineno or 0) - node.lineno + 1 > LINES
        is_wide = isinstance(node, ast.ClassDef) and len(attributes(node)) > ATTRIBUTES
        if isinstance(node, Function | ast.ClassDef) and (is_long or is_wide):
            yield f"{file} {node.name}"


def test_functions_and_classes_are_small() -> None:
    assert {name for file, tree in SOURCES.items() for name in too_large(file, tree)} == set()


def test_a_large_function_and_a_large_class_are_detected() -> None:
    body = "".join(f"    a{i} = {i}\n" for i in range(LINES))
    fields = "".join(f"    a{i}: int\n" for i in range(ATTRIBUTES))
    method = "    def f(this):\n        this.a0 = this.{} = 1\n        this.other.c = 2\n"
    source = f"def long():\n{body}class A:\n{fields}{method.format('a1')}class B:\n{fields}{method.format('b')}"
    assert list(too_large("x.py", ast.parse(source))) == ["x.py long", "x.py B"]


def runs_of(node: Function) -> set[str]:
    """Return the parameters of a function that are a run."""
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return {
        argument.arg
        for argument in arguments
        if argument.annotation is not None and ast.unparse(argument.annotation) == RUN
    }


def changes_of_runs(file: str, tree: ast.Module) -> Iterator[str]:
    """Yield assignments to a run that a function received, or to a value in it."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and (runs := runs_of(node)):
            yield from (
                f"{file}:{target.lineno} {ast.unparse(target)}"
                for target in (*assigned(node), *items(node))
                if first_name(target) in runs
            )


def test_no_function_assigns_to_a_run() -> None:
    others = {file: tree for file, tree in SOURCES.items() if file != OWNER}
    assert [change for file, tree in others.items() for change in changes_of_runs(file, tree)] == []
    assert any(runs_of(node) for tree in others.values() for node in ast.walk(tree) if isinstance(node, Function))


@pytest.mark.parametrize("target", ["s.config", "s.status.evaluation", "s.compile_stats.names", "s.status.policies[0]"])
def test_an_assignment_to_a_run_is_detected(target: str) -> None:
    source = f"def f(s: TrainingRun):\n    {target} = 1\ndef g(s: Other):\n    {target} = 1\n"
    assert list(changes_of_runs("x.py", ast.parse(source))) == [f"x.py:2 {target}"]
