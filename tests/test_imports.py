"""The layers of the package: allowed imports, and packages that work without JAX."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jaxrl_sql"

# Packages and modules from top to bottom: each may import itself and lower lines.
LAYERS = (
    ("__main__", "train"),
    ("commands",),
    ("api",),
    ("serving",),
    ("training",),
    ("inference",),
    ("planning",),
    ("report", "datagen"),
    ("databases",),
    ("rollout",),
    ("algo",),
    ("models",),
    ("parallel",),
    ("text2sql.question_sets", "text2sql.adapters", "text2sql.recipes", "text2sql.evals"),
    ("text2sql.benchmarks", "text2sql.prompts", "text2sql.rewards"),
    ("text2sql.schema",),
    ("text2sql.files",),
    ("text2sql.env",),
    ("text2sql",),
    ("runtime",),
    ("config",),
    ("batch",),
    ("types",),
)
RANK = {package: rank for rank, line in enumerate(LAYERS) for package in line}
# Packages that only these import.
OWNERS = {
    "sqlexec_rs": ("text2sql.env", "commands"),
    "orbax": ("training",),
    "tensorboardX": ("runtime",),
    "openai": ("runtime",),
    "huggingface_hub": ("runtime",),
    "rich": ("runtime",),
    "argparse": ("commands",),
}
# Modules below the commands that print: two to a stream passed by the caller.
PRINTING = {
    "jaxrl_sql.runtime.display",
    "jaxrl_sql.runtime.tables",
    "jaxrl_sql.parallel.watch",  # ends a process that waits for a lost one, in its own thread
}
PRINTS = ("print", "print_text", "show_table", "show_counts", "sys.stdout.write", "sys.stderr.write")
# These, and everything that they import, work without JAX.
WITHOUT_JAX = ("text2sql", "datagen", "databases", "report", "runtime", "config", "types")
# Packages whose functions may take a command's root configuration; others take sections.
WITH_ROOT_CONFIGS = ("commands", "api", "training")
# Modules that import an optional package.
OPTIONAL = {"jaxrl_sql.text2sql.adapters.openenv": "openenv", "jaxrl_sql.text2sql.adapters.verifiers": "verifiers"}


def modules() -> dict[str, Path]:
    """Return every module of the package by dotted name."""
    result = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return result


MODULES = modules()


def package_of(module: str) -> str:
    """Return the entry of LAYERS for a module of ours, empty for the package itself."""
    parts = module.split(".")[1:]
    below = ".".join(parts[:2])
    return below if below in RANK else parts[0] if parts else ""


def without_jax(package: str) -> bool:
    """Return whether a package works without JAX."""
    return package.partition(".")[0] in WITHOUT_JAX


@functools.cache
def imports(module: str) -> tuple[tuple[int, str], ...]:
    """Return (line, dotted name) of everything that a module imports, also inside functions."""
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


def find_errors(module: str) -> list[str]:
    """Return the imports of a module that violate the layers."""
    package = package_of(module)
    wrong = []
    for line, target in imports(module):
        top = target.split(".")[0]
        where = f"{module}:{line} imports {target}"
        if top == "jaxrl_sql":
            other = package_of(target)
            # `__init__` names the public functions for type checkers.
            if package and other != package and not (other and RANK[other] > RANK[package]):
                wrong.append(f"{where}: {other or 'the package'} is not below {package}")
        elif top in OWNERS and package not in OWNERS[top]:
            wrong.append(f"{where}: only {' and '.join(OWNERS[top])} may")
        elif without_jax(package) and top in ("jax", "jaxlib", "flax", "optax", "orbax"):
            wrong.append(f"{where}: {package} works without JAX")
    return wrong


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_only_imports_from_lower_layers(module: str) -> None:
    assert find_errors(module) == []


def prints(path: Path) -> bool:
    """Return whether a file calls a function that prints."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func) in PRINTS for call in calls)


def test_only_commands_print() -> None:
    below = {module: path for module, path in MODULES.items() if package_of(module) not in ("commands", "__main__")}
    assert {module for module, path in below.items() if prints(path)} == PRINTING


def test_only_the_registry_imports_database_engines() -> None:
    folder = "jaxrl_sql.databases.engines"
    engines = {f"{folder}.{name}" for name in ("duckdb", "mysql", "postgresql")}
    assert {module for module in MODULES for _, target in imports(module) if target in engines} == {
        f"{folder}.registry"
    }


def test_each_package_has_a_layer() -> None:
    packages = {package_of(module) for module in MODULES}
    assert packages - {""} == set(RANK)


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or indirectly."""
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


def test_modules_have_no_import_cycles() -> None:
    """Imports inside functions and for type checkers count: they hide a cycle without breaking it."""
    graph = {
        module: {target for _, target in imports(module) if target in MODULES and target != module}
        for module in MODULES
    }
    assert cycles(graph) == []


def test_an_import_cycle_is_detected() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}) == [["a", "b", "c"]]


def test_a_forbidden_import_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        "import jax\nfrom ... import models\ndef f():\n    import sqlexec_rs\n    from ...types import Reward\n"
    )
    monkeypatch.setitem(MODULES, "jaxrl_sql.text2sql.rewards.wrong", path)
    assert [error.split(" imports ")[1].split(":")[0] for error in find_errors("jaxrl_sql.text2sql.rewards.wrong")] == [
        "jax",
        "jaxrl_sql.models",
        "sqlexec_rs",
    ]


def root_configs() -> set[str]:
    """Return the names of the root configurations: the classes of config/roots.py."""
    text = (PACKAGE / "config/roots.py").read_text(encoding="utf-8")
    classes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    return {node.name for node in classes if node.name.endswith("Config")} - {"RootConfig"}  # it has no section


def named_types(annotation: ast.expr | None) -> set[str]:
    """Return every name in an annotation, including those in strings."""
    if annotation is None:
        return set()
    nodes = list(ast.walk(annotation))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names.union(
        (node.attr for node in nodes if isinstance(node, ast.Attribute)), *(re.findall(r"\w+", text) for text in texts)
    )


def aliases(names: set[str], tree: ast.Module) -> set[str]:
    """Return the aliases in a file of types that name one of `names`, such as `Files = Path | TrainConfig`."""
    result = set(names)
    for _ in range(3):  # an alias may name another
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom():
                    result |= {name.asname for name in node.names if name.asname and name.name in result}
                case ast.Assign(value=ast.Name() | ast.Attribute() | ast.BinOp() | ast.Subscript() as value):
                    if result & named_types(value):
                        result |= {target.id for target in node.targets if isinstance(target, ast.Name)}
                case ast.AnnAssign(annotation=ast.Name(id="TypeAlias"), target=ast.Name(id=alias), value=value):
                    result |= {alias} if result & named_types(value) else set()
                case ast.ClassDef():
                    result |= {node.name} if any(result & named_types(base) for base in node.bases) else set()
    return result - names


def signatures_with(names: set[str], tree: ast.Module) -> list[int]:
    """Return the lines of a file's functions, and of its classes' fields, whose annotations name one of `names`.

    A function counts once. An alias that the file defines counts as its type.
    """
    names = names | aliases(names, tree)
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (argument for argument in ast.walk(node.args) if isinstance(argument, ast.arg))
            annotations = [node.returns, *(argument.annotation for argument in arguments)]
            lines += [node.lineno] if any(names & named_types(annotation) for annotation in annotations) else []
        elif isinstance(node, ast.ClassDef):
            fields = (field for field in node.body if isinstance(field, ast.AnnAssign))
            lines += [field.lineno for field in fields if names & named_types(field.annotation)]
    return sorted(lines)


def signatures_with_root_configs() -> dict[str, list[int]]:
    """Return the lines of signatures that name a root configuration, by module outside `config`."""
    names = root_configs()
    signatures = {
        module: signatures_with(names, ast.parse(path.read_text(encoding="utf-8")))
        for module, path in sorted(MODULES.items())
        if package_of(module) != "config"
    }
    return {module: lines for module, lines in signatures.items() if lines}


def test_signatures_with_a_root_config_are_detected() -> None:
    tree = ast.parse(
        "def f(a: int, *, b: Callable[[TrainConfig], int], c: TrainConfig): pass\n"
        "async def g(*rest: 'Iterator[config.TrainConfig | None]') -> int: pass\n"
        "def h() -> config.TrainConfig | None: pass\n"
        "def i(a: TrainConfigs, b=TrainConfig): pass\n"
        "class J:\n"
        "    a: Mapping[str, TrainConfig]\n"
        "    b: int\n"
        "    def k(self, config: EvaluateConfig): x: TrainConfig = config\n"
        "Files = str | TrainConfig\n"
        "def m(files: Files): pass\n"
    )
    assert signatures_with({"TrainConfig", "EvaluateConfig"}, tree) == [1, 2, 3, 6, 8, 10]


def test_root_configs_are_only_used_by_commands() -> None:
    signatures = signatures_with_root_configs()
    assert {module for module in signatures if package_of(module) not in WITH_ROOT_CONFIGS} == set()
    assert sum(map(len, signatures.values())) <= 40
    assert len(signatures) <= 12


def test_packages_without_jax_load_without_jax() -> None:
    chosen = [
        module
        for module in sorted(MODULES)
        if without_jax(package_of(module)) and (module not in OPTIONAL or importlib.util.find_spec(OPTIONAL[module]))
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


def test_scheduler_plans_without_jax_or_a_model() -> None:
    """Its package loads JAX, so an empty package replaces it."""
    program = (
        "import importlib, sys, types\n"
        "package = types.ModuleType('jaxrl_sql.rollout')\n"
        f"package.__path__ = [{str(PACKAGE / 'rollout')!r}]\n"
        "sys.modules[package.__name__] = package\n"
        "importlib.import_module('jaxrl_sql.rollout.scheduler')\n"
        "heavy = ('jax', 'jaxlib', 'flax', 'jaxrl_sql.models', 'jaxrl_sql.rollout.model_runner')\n"
        "loaded = [name for name in heavy if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def main() -> None:
    """Print each package's lines, the import counts between packages, and signatures with root configs."""
    graph = {module: {target for _, target in imports(module) if target in MODULES} for module in MODULES}
    layers = {package.partition(".")[0] for package in RANK}
    for layer in sorted(layers, key=lambda name: min(RANK[package] for package in RANK if package.startswith(name))):
        paths = [path for module, path in MODULES.items() if module.split(".")[1:2] == [layer]]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
        sys.stdout.write(f"{layer:<12} {len(paths):>4} files {lines:>7} lines\n")
    pairs = {(a.split(".")[1:2][0], b.split(".")[1:2][0]) for a in graph for b in graph[a] if "." in a and "." in b}
    groups = cycles({module: targets - {module} for module, targets in graph.items()})
    upward = [error for module in MODULES for error in find_errors(module)]
    apart = sum(a != b for a, b in pairs)
    sys.stdout.write(f"{apart} import pairs, {len(groups)} cycles, {len(upward)} imports of an upper layer\n")
    signatures = signatures_with_root_configs()
    count = sum(map(len, signatures.values()))
    sys.stdout.write(f"root configs: {count} signatures in {len(signatures)} files\n")
    for module, lines in signatures.items():
        if package_of(module) not in WITH_ROOT_CONFIGS:
            sys.stdout.write(f"  outside {', '.join(WITH_ROOT_CONFIGS)}: {module}, {len(lines)}\n")


if __name__ == "__main__":
    main()
