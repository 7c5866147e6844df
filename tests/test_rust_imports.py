"""Import rules of the Rust crates: no cycles between files, and the core's modules follow a table.

An import is a path that begins with `crate`, `super`, `self` or a module that the file declares, in a `use` or in
the code. Comments, strings and `#[cfg(test)]` modules are ignored; a re-export of a child is not an import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

RUST = Path(__file__).parents[1] / "sqlexec_rs"
CRATES = {"core": RUST / "core" / "src", "py": RUST / "py" / "src"}

# The allowed imports of each folder of the core; single files count as folders.
ARROWS: dict[str, set[str]] = {
    "memory": set(),
    "budget": {"memory"},
    "error": set(),
    "excess": {"outcome", "request", "result"},
    "scan": set(),
    "result": {"budget", "error", "memory"},
    "outcome": {"memory", "result"},
    "target": {"outcome"},
    "request": {"result", "target"},
    "abandoned_sessions": {"locks", "outcome"},
    "stats": {"abandoned_sessions", "outcome"},
    "hint": {"scan"},
    "locks": set(),
    "compare": {"budget", "memory", "outcome", "result"},
    "sqlite": {"error", "excess", "hint", "locks", "memory", "outcome", "request", "result", "scan", "stats"},
    "server": {
        "abandoned_sessions",
        "excess",
        "locks",
        "memory",
        "outcome",
        "request",
        "result",
        "scan",
        "stats",
        "target",
    },
    "process": {"error", "excess", "locks", "memory", "outcome", "request", "result", "sqlite", "stats"},
    "pool": {
        "budget",
        "compare",
        "error",
        "locks",
        "outcome",
        "process",
        "request",
        "result",
        "scan",
        "server",
        "sqlite",
        "stats",
        "target",
    },
}

# A comment, a string (raw or not), or a character; a lifetime is not a character.
NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""", re.DOTALL)
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*([{;])")
USE = re.compile(r"\buse\s+((?:crate|super|self)::[^;]*);")
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
DECLARED = re.compile(r"\bmod\s+(\w+)\s*;")
EXPORT = re.compile(r"\bpub(?:\([^)]*\))?\s+use\s[^;]*;")

Module = tuple[str, ...]


def read_modules(root: Path) -> dict[Module, str]:
    """Return the text of each module of a crate by path; the path of the crate root is empty."""
    modules = {}
    for file in sorted(root.rglob("*.rs")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[0] != "bin" and parts[-1] != "tests":
            modules[parts[:-1] if parts[-1] in {"mod", "lib"} else parts] = file.read_text()
    return modules


def strip_tests(code: str) -> str:
    """Return code without its test modules."""
    while match := TEST_MODULE.search(code):
        end = match.end()
        depth = int(match[1] == "{")
        while depth:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        code = code[: match.start()] + code[end:]
    return code


def expand(tree: str) -> Iterator[Module]:
    """Yield the paths of a `use`, whose braces may be nested."""
    prefix, brace, group = tree.strip().partition("{")
    names = tuple(name for name in prefix.split(" as ")[0].strip().split("::") if name)
    if not brace:
        yield names
        return
    depth, item = 0, ""
    for character in group.rpartition("}")[0] + ",":
        if character == "," and not depth:
            yield from (names + rest for rest in expand(item) if rest)
            item = ""
            continue
        depth += {"{": 1, "}": -1}.get(character, 0)
        item += character


def resolve(path: Module, here: Module) -> Module:
    """Return a path relative to the crate root."""
    base: Module = () if path[0] == "crate" else here
    for name in path:
        if name == "super":
            base = base[:-1]
        elif name not in {"crate", "self"}:
            base = (*base, name)
    return base


def find_arrows(modules: Mapping[Module, str]) -> dict[Module, set[Module]]:
    """Return the modules that each module imports, without the crate root."""
    arrows = {}
    for here, text in modules.items():
        code = strip_tests(NO_CODE.sub("''", text))
        paths = [path for match in USE.finditer(code) for path in expand(match[1])]
        paths += [tuple(match[0].split("::")) for match in PATH.finditer(USE.sub("", code))]
        targets = set()
        for path in (resolve(path, here) for path in paths):
            lengths = range(len(path), 0, -1)
            targets.add(next((path[:n] for n in lengths if path[:n] in modules), ()))
        targets = {target for target in targets if target and target[: len(here)] != here}
        used = EXPORT.sub("", code)
        children = [name for name in DECLARED.findall(code) if re.search(rf"(?<![\w:]){name}::", used)]
        arrows[here] = targets | {(*here, name) for name in children}
    return arrows


def find_cycle(arrows: Mapping[Module, set[Module]]) -> list[Module]:
    """Return modules of which each imports the next and the last the first; empty without a cycle."""
    done: set[Module] = set()

    def walk(module: Module, path: list[Module]) -> list[Module]:
        if module in path:
            return path[path.index(module) :]
        if module not in done:
            for target in sorted(arrows.get(module, ())):
                if cycle := walk(target, [*path, module]):
                    return cycle
            done.add(module)
        return []

    return next((cycle for module in sorted(arrows) if (cycle := walk(module, []))), [])


@pytest.mark.parametrize("crate", CRATES)
def test_rust_files_have_no_import_cycles(crate: str) -> None:
    arrows = find_arrows(read_modules(CRATES[crate]))
    assert sum(map(len, arrows.values())) > len(arrows) / 2, "the imports are not parsed"
    assert find_cycle({module: targets for module, targets in arrows.items() if module}) == []


def test_core_modules_follow_the_import_table() -> None:
    imports: dict[str, set[str]] = {module_name: set() for module_name in ARROWS}
    for module, targets in find_arrows(read_modules(CRATES["core"])).items():
        if module:
            imports[module[0]] |= {target[0] for target in targets} - {module[0]}
    assert imports == ARROWS
    assert (
        find_cycle({(module_name,): {(target,) for target in targets} for module_name, targets in ARROWS.items()}) == []
    )


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("use crate::b::Thing;", {("b",)}),
        ("use super::b::Thing as Other;", {("b",)}),
        ("pub(crate) use crate::{b::{self, Thing}, room::{c::{X, Y}, d}};", {("b",), ("room", "c"), ("room", "d")}),
        ("fn f() -> crate::room::c::X { super::b::make() }", {("room", "c"), ("b",)}),
        ("use crate::room::Exported;", {("room",)}),
        ('// use crate::b;\n/* crate::b */ const A: &str = "use crate::b;"; const B: &str = r#"crate::b "#;', set()),
        ("#[cfg(test)]\nmod tests {\n    use crate::b;\n    fn f() { '{'; }\n}\nuse crate::room::d;", {("room", "d")}),
        ("#[cfg(test)]\nmod tests;\nuse crate::b;", {("b",)}),
        ("use std::sync::Arc;\nuse crate::PoolError;", set()),
        ("mod e;\nuse e::Thing;", {("a", "e")}),
        ("mod e;\nfn f() { e::make() }", {("a", "e")}),
        ("mod e;\npub(crate) use e::Thing;", set()),
        ("mod e;\nfn f() { other::e::make() }", set()),
    ],
)
def test_imports_are_parsed(text: str, targets: set[Module]) -> None:
    modules: dict[Module, str] = {(): "", ("a",): text, ("b",): "", ("room",): "", ("room", "c"): "", ("room", "d"): ""}
    assert find_arrows(modules)["a",] == targets


def test_a_cycle_is_detected() -> None:
    modules: dict[Module, str] = {
        ("room", "a"): "use super::b::B;",
        ("room", "b"): "fn f() { crate::room::c::f() }",
        ("room", "c"): "use crate::{room::{a::A}};",
        ("room", "d"): "use super::a::A;",
    }
    assert find_cycle(find_arrows(modules)) == [("room", "a"), ("room", "b"), ("room", "c")]


def test_a_cycle_of_a_module_and_its_child_is_detected() -> None:
    modules: dict[Module, str] = {("room",): "mod a;\nuse a::A;", ("room", "a"): "use super::Thing;"}
    assert find_cycle(find_arrows(modules)) == [("room",), ("room", "a")]
