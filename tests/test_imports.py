"""The arrows between the rooms: who may import whom, and which rooms load without jax."""

from __future__ import annotations

import ast
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jaxrl_sql"

# Every room may import these. They import nothing of ours but the errors and one another's ground floor.
LEAVES = {"types", "config", "batch", "ops"}
FLOOR = {"types"}

# What stands beside the rooms: the nouns of host and device, and the commands, each alone.
TOP = {"types", "batch"} | {
    "train", "sft", "evaluate", "filter_data", "distill", "augment", "audit", "plan", "launch", "ask", "mcp", "doctor",
    "export", "api",
    "__main__",
}  # fmt: skip
COMMAND_ROOMS = {"run", "verbal", "view", "serve"}  # what the commands share, and commands of several files

# What each room may import beside itself and the leaves; `data.pack` and the like are rooms of their own here.
ARROWS: dict[str, set[str]] = {
    "parallel": set(),
    "algo": set(),
    "report": {"runtime", "evals"},  # it reads the pieces that a run keeps, and finds intervals
    "models": {"parallel"},
    "sqlenv": set(),
    "rewards": {"sqlenv"},
    "sqlenv.adapters": {"sqlenv", "rewards"},
    "evals": {"sqlenv", "rewards"},  # a dialogue is read as its reward reads it
    "data": {"sqlenv", "data.prompts", "data.pack"},
    "datagen": {"data", "data.prompts", "sqlenv", "rewards", "runtime", "evals"},
    "data.pack": {"parallel", "data"},
    "data.prompts": {"data"},
    "rollout": {"models", "parallel", "sqlenv"},
    "planning": {"models", "parallel", "algo", "rollout"},
    "runtime": {"parallel"},
    "recipes": {"data", "data.prompts", "rewards", "algo", "rollout", "sqlenv"},
}

# What only one room may import.
DOORS = {
    "sqlexec_rs": "sqlenv",
    "orbax": "runtime",
    "tensorboardX": "runtime",
    "openai": "runtime",
    "huggingface_hub": "runtime",
    "rich": "runtime",
}

# These never load jax, and neither does anything that they import.
WITHOUT_JAX = {
    "config", "types", "data", "data.prompts", "datagen", "sqlenv", "sqlenv.adapters", "rewards", "evals", "report",
}  # fmt: skip
# What imports a package that need not be there.
OPTIONAL = {"jaxrl_sql.sqlenv.adapters.openenv": "openenv", "jaxrl_sql.sqlenv.adapters.verifiers": "verifiers"}


def modules() -> dict[str, Path]:
    """Return every module of the package by dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    """Return the room of a module of ours: its folder, a leaf, `commands` for a command and what commands share."""
    parts = module.split(".")[1:]
    if not parts:
        return "the package"
    if ".".join(parts[:2]) in ("data.pack", "data.prompts", "sqlenv.adapters"):
        return ".".join(parts[:2])
    if parts[0] in ARROWS or parts[0] in LEAVES:
        return parts[0]
    return "commands"


@functools.cache
def imports(module: str) -> tuple[tuple[int, str], ...]:
    """Return (line, dotted name) of everything that a module imports, inside of functions too."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(read_imports(path, package))


def read_imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything that a file of a package imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for name in node.names:
                deeper = f"{start}.{name.name}"
                yield node.lineno, deeper if deeper in MODULES else start


def faults(module: str) -> list[str]:
    """Return what a module imports against the arrows."""
    room = room_of(module)
    wrong = []
    for line, target in imports(module):
        top = target.split(".")[0]
        where = f"{module}:{line} imports {target}"
        if top == "jaxrl_sql":
            other = room_of(target)
            allowed = {room} | (ARROWS[room] | LEAVES if room in ARROWS else FLOOR)
            # The package names what it gives, for type checkers alone.
            if room not in ("commands", "the package") and other not in allowed:
                wrong.append(f"{where}: {room} may import only {', '.join(sorted(allowed))}")
        elif room != "commands" and top in DOORS and DOORS[top] != room:
            wrong.append(f"{where}: only {DOORS[top]} does")
        elif room in WITHOUT_JAX and top in ("jax", "jaxlib", "flax", "optax", "orbax"):
            wrong.append(f"{where}: {room} loads without jax")
    return wrong


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_keeps_to_the_arrows(module: str) -> None:
    assert faults(module) == []


def test_the_top_floor_holds_commands_and_two_nouns() -> None:
    beside = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert beside == TOP
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == {room for room in {*ARROWS, *LEAVES} - TOP if "." not in room} | COMMAND_ROOMS


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import one another, directly or by others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set(), [start]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    return sorted(sorted(group) for group in groups)


def test_no_files_import_one_another() -> None:
    """Imports inside of functions and for type checkers alone count: they hide a cycle, and do not break it."""
    graph = {
        module: {target for _, target in imports(module) if target in MODULES and target != module}
        for module in MODULES
    }
    assert cycles(graph) == []


def test_a_cycle_is_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}) == [["a", "b", "c"]]


def test_rooms_of_the_table_exist() -> None:
    """A room that moved or was renamed must not leave a row behind that holds nothing."""
    assert set(ARROWS) | LEAVES <= {room_of(module) for module in MODULES}


def test_a_wrong_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        "import jax\nfrom .. import models\ndef f():\n    import sqlexec_rs\n    from ..types import Reward\n"
    )
    monkeypatch.setitem(MODULES, "jaxrl_sql.rewards.wrong", path)
    assert [fault.split(" imports ")[1].split(":")[0] for fault in faults("jaxrl_sql.rewards.wrong")] == [
        "jax",
        "jaxrl_sql.models",
        "sqlexec_rs",
    ]


def test_rooms_without_jax_load_without_jax() -> None:
    chosen = ["jaxrl_sql.recipes"]  # it names functions of rooms that load jax
    chosen += [
        module
        for module in sorted(MODULES)
        if room_of(module) in WITHOUT_JAX
        and not module.endswith("__main__")
        and (module not in OPTIONAL or importlib.util.find_spec(OPTIONAL[module]))
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {['sqlexec_rs', *chosen]!r}:\n"
        "    importlib.import_module(name)\n"
        "    loaded = [heavy for heavy in ('jax', 'jaxlib', 'flax', 'torch') if heavy in sys.modules]\n"
        "    assert not loaded, f'{name} loads {loaded}'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
