"""Compare the stubs of `sqlexec_rs._native` with the module that was built.

Every public name, every member of a class and every parameter (name, kind, and whether it has a default) must be on
both sides. Prints the differences and exits with 1, or prints the number of names and exits with 0.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import sqlexec_rs
from sqlexec_rs import _native

# Attributes of every Python class, which a stub may omit.
IMPLICIT = frozenset(dir(object)) | frozenset(dir(Exception)) | {"__module__", "__weakref__", "__doc__"}


def public_names(module: ModuleType) -> set[str]:
    """Return the public names of a module."""
    return {name for name in dir(module) if not name.startswith("_")}


def stub_names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the public definitions of a stub's or a class's body by name."""
    result: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            result[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            result[node.target.id] = node
    return {name: node for name, node in result.items() if not (name.startswith("_") and not name.startswith("__"))}


def stub_parameters(node: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """Return (name, kind, has default) of each parameter of a stub, without `self`."""
    args = node.args
    n_plain = len(args.posonlyargs) + len(args.args)
    has_default = [False] * (n_plain - len(args.defaults)) + [True] * len(args.defaults)
    kinds = ["POSITIONAL_ONLY"] * len(args.posonlyargs) + ["POSITIONAL_OR_KEYWORD"] * len(args.args)
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    plain = [row for row in zip(names, kinds, has_default, strict=True) if row[0] not in {"self", "cls"}]
    keyword = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    rows = plain + [(arg.arg, "KEYWORD_ONLY", default is not None) for arg, default in keyword]
    return rows + ([(args.kwarg.arg, "VAR_KEYWORD", False)] if args.kwarg else [])


def built_parameters(function: object) -> list[tuple[str, str, bool]]:
    """Return (name, kind, has default) of each parameter of a built callable, without `self`."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    rows = [(p.name, p.kind.name, p.default is not p.empty) for p in parameters]
    return [row for row in rows if row[0] not in {"self", "cls"}]


def compare_class(name: str, node: ast.ClassDef, built: type) -> Iterator[str]:
    """Yield the differences between a class's stub and the built class."""
    members = stub_names(node.body)
    wanted = {member for member in members if not member.startswith("__")}
    offered = {member for member in vars(built) if not member.startswith("_")}
    for member in sorted(wanted - offered):
        yield f"{name}.{member} is in the stub and not in the module"
    for member in sorted(offered - wanted):
        yield f"{name}.{member} is in the module and not in the stub"
    for member, definition in members.items():
        if not isinstance(definition, ast.FunctionDef) or member in {"__eq__", "__hash__", "__exit__"}:
            continue  # slots of the type: the language defines their parameters
        label = f"{name}.{member}"
        if member == "__new__":
            yield from compare_parameters(name, definition, built)
        elif any(isinstance(d, ast.Name) and d.id == "property" for d in definition.decorator_list):
            if not inspect.isdatadescriptor(inspect.getattr_static(built, member, None)):
                yield f"{label} is a property in the stub and not in the module"
        elif member in offered or member.startswith("__"):
            yield from compare_parameters(label, definition, inspect.getattr_static(built, member, None))


def compare_parameters(label: str, node: ast.FunctionDef, built: object) -> Iterator[str]:
    """Yield the difference between a function's stub and the built function, if there is one."""
    if built is None or not callable(built):
        yield f"{label} is a function in the stub and not in the module"
        return
    wanted, offered = stub_parameters(node), built_parameters(built)
    if wanted != offered:
        yield f"{label}: the stub has {wanted}, the module {offered}"


def compare(stub: ast.Module, module: ModuleType) -> Iterator[str]:
    """Yield every difference between a stub and a module."""
    names = stub_names(stub.body)
    for name in sorted(set(names) - public_names(module)):
        yield f"{name} is in the stub and not in the module"
    for name in sorted(public_names(module) - set(names)):
        yield f"{name} is in the module and not in the stub"
    for name, node in names.items():
        built = getattr(module, name, None)
        if isinstance(node, ast.ClassDef) and isinstance(built, type):
            yield from compare_class(name, node, built)
        elif isinstance(node, ast.FunctionDef) and built is not None:
            yield from compare_parameters(name, node, built)


def main() -> int:
    """Compare, print and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(sqlexec_rs.__file__).with_name("_native.pyi")
    parser.add_argument("--stub", type=Path, default=default, help="the stub file (default: next to the module)")
    stub = ast.parse(parser.parse_args().stub.read_text(encoding="utf-8"))
    differences = list(compare(stub, _native))
    missing = sorted(public_names(_native) - set(sqlexec_rs.__all__))
    differences += [f"{name} is in the native module and not in sqlexec_rs.__all__" for name in missing]
    for difference in differences:
        print(f"check_stubs: {difference}")
    if not differences:
        print(f"check_stubs: {len(stub_names(stub.body))} names agree")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
