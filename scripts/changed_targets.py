"""Print the make targets that a change needs, as the matrix of .github/workflows/checks.yml.

`python scripts/changed_targets.py BASE` compares with the commit BASE; `--all` lists every target. Each entry has
its `package`, the `target`, and the Debian packages (`apt`) that it needs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EVERYTHING = ("Makefile", "pyproject.toml", ".github/workflows/checks.yml", "scripts/changed_targets.py")
"""Files whose change needs all targets."""
RUST = ("Cargo.*", "clippy.toml", "rustfmt.toml", "sqlexec_rs/*", "build_backend.py")
PAGES = ("*.md", "docs/*", "skills/*")


class Target(NamedTuple):
    """A make target, the globs of the files that it tests (`*` matches `/` too), and its Debian packages."""

    package: str
    name: str
    globs: tuple[str, ...]
    apt: str = ""


SERVERS = "postgresql mariadb-server"
CODE = ("jaxrl_sql/*", "tests/*", "configs/*", *RUST)
TARGETS = (
    Target("executor", "check-rust", RUST),
    Target("executor", "test-rust", RUST),
    Target(
        "executor", "test-servers", (*RUST, "jaxrl_sql/databases/*", "jaxrl_sql/text2sql/env/*", "tests/*"), SERVERS
    ),
    Target("jaxrl_sql", "check-python", ("*.py", "*.pyi", "*.rs", "*.yaml", "*.sh", *PAGES)),
    Target("jaxrl_sql", "test", (*CODE, *PAGES, "scripts/*", ".github/*")),
    Target("jaxrl_sql", "test-slow", (*CODE, "scripts/*"), f"{SERVERS} slurmctld slurmd slurm-client munge shellcheck"),
    Target(
        "jaxrl_sql", "test-multidevice",
        (
            "jaxrl_sql/algo/*", "jaxrl_sql/models/*", "jaxrl_sql/parallel/*", "jaxrl_sql/rollout/*",
            "jaxrl_sql/training/*", "tests/multidevice/*",
        ),
    ),
    Target("jaxrl_sql", "test-browser", ("jaxrl_sql/report/*", "tests/browser/*", "tests/view_runs.py")),
    Target(
        "jaxrl_sql", "test-parity",
        ("jaxrl_sql/algo/*", "jaxrl_sql/models/*", "jaxrl_sql/text2sql/prompts/*", "scripts/*stack*", "tests/parity/*"),
    ),
    Target("jaxrl_sql", "test-real", ("jaxrl_sql/models/*", "tests/parity/*")),
    Target(
        "jaxrl_sql", "test-llama-cpp",
        ("jaxrl_sql/models/formats/*", "jaxrl_sql/training/trained_chat.py", "tests/parity/*"),
    ),
    Target("jaxrl_sql", "test-tpu-plan", ("jaxrl_sql/models/*", "jaxrl_sql/planning/*", "tests/unit/planning/*")),
    Target("jaxrl_sql", "test-gpu-plan", ("jaxrl_sql/models/*", "jaxrl_sql/planning/*", "tests/unit/planning/*")),
    Target("jaxrl_sql", "test-trainers", (*RUST, "jaxrl_sql/text2sql/*", "tests/unit/text2sql/adapters/*")),
    Target("jaxrl_sql", "test-lowest", ("pyproject.toml",)),
    Target(
        "docs", "test-docs",
        (*PAGES, "jaxrl_sql/commands/*", "jaxrl_sql/config/*", "scripts/build_docs.py", "tests/docs/*"),
    ),
)  # fmt: skip


def targets_of(files: Iterable[str]) -> list[Target]:
    """Return the targets that changed files need."""
    files = list(files)
    if any(file in EVERYTHING for file in files):
        return list(TARGETS)
    return [target for target in TARGETS if any(fnmatch(file, glob) for file in files for glob in target.globs)]


def list_changed_files(root: Path, base: str) -> list[str]:
    """Return the files that changed since the branch forked from the commit `base`."""
    command = ["git", "-C", str(root), "diff", "--name-only", "-z", "--no-renames", f"{base}...HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def main() -> None:
    """Print the matrix as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="a commit to compare with")
    parser.add_argument("--all", action="store_true", help="list every target")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to read")
    arguments = parser.parse_args()
    if not arguments.all and not arguments.base:
        parser.error("give BASE or --all")
    targets = TARGETS if arguments.all else targets_of(list_changed_files(arguments.root, arguments.base))
    print(json.dumps([{"package": target.package, "target": target.name, "apt": target.apt} for target in targets]))


if __name__ == "__main__":
    main()
