"""Workflows: targets of a change, existing targets, and actions pinned by commit."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/changed_targets.py"
SPEC = importlib.util.spec_from_file_location("changed_targets", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
changed_targets = importlib.util.module_from_spec(SPEC)
sys.modules["changed_targets"] = changed_targets
SPEC.loader.exec_module(changed_targets)
MAKE_TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def names(*files: str) -> set[str]:
    return {target.name for target in changed_targets.targets_of(files)}


@pytest.mark.parametrize(
    ("file", "needed", "left"),
    [
        ("docs/howto/resume.md", {"test-docs", "check-python", "test"}, {"check-rust", "test-slow"}),
        ("sqlexec_rs/core/src/lib.rs", {"check-rust", "test-rust", "test", "test-servers"}, {"test-docs", "test-real"}),
        ("jaxrl_sql/models/rope.py", {"test-parity", "test-real", "test-tpu-plan"}, {"check-rust", "test-browser"}),
        ("jaxrl_sql/report/charts.py", {"test-browser", "test"}, {"test-parity", "test-servers"}),
        ("scripts/bench_step.py", {"check-python", "test"}, {"test-docs", "check-rust"}),
    ],
)
def test_change_selects_the_targets_of_its_package(file: str, needed: set[str], left: set[str]) -> None:
    assert needed <= names(file)
    assert not left & names(file)


def test_build_change_selects_all_targets() -> None:
    assert names("Makefile") == {target.name for target in changed_targets.TARGETS}
    assert names() == set()


def test_each_target_exists_in_the_makefile() -> None:
    assert {target.name for target in changed_targets.TARGETS} <= MAKE_TARGETS
    tests = {name for name in MAKE_TARGETS if name.startswith(("test", "check"))} - {
        "check",
        "test-all",
        "test-nightly",
    }
    assert {target.name for target in changed_targets.TARGETS} == tests


def test_changed_files_are_relative_to_the_merge_base(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    git("commit", "--quiet", "--allow-empty", "--message=first")
    git("switch", "--quiet", "--create=branch")
    (tmp_path / "README.md").write_text("a\n")
    git("add", ".")
    git("commit", "--quiet", "--message=second")
    git("switch", "--quiet", "main")
    (tmp_path / "Makefile").write_text("all:\n")
    git("add", ".")
    git("commit", "--quiet", "--message=third")
    base = git("rev-parse", "main")
    git("switch", "--quiet", "branch")
    command = [sys.executable, str(SCRIPT), base, "--root", str(tmp_path)]
    matrix = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {entry["target"] for entry in matrix} == names("README.md")
    assert all(set(entry) == {"package", "target", "apt"} for entry in matrix)


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_has_pinned_actions_and_existing_files_and_targets(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert {"name", "permissions", "jobs"} <= workflow.keys()
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "runs-on" in job
        assert set(job.get("needs", "").split()) <= workflow["jobs"].keys()
    actions = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []
    assert text.count("# v") == len(actions), "each pin names its version"
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    assert all((ROOT / script).is_file() for script in re.findall(r"\bscripts/\w+\.py\b", commands))
    assert set(re.findall(r"\bmake ([a-z][\w-]*)", commands)) <= MAKE_TARGETS


def test_each_action_has_one_version() -> None:
    pins = {
        (name, commit)
        for path in WORKFLOWS
        for name, commit in re.findall(r"uses: ([\w/-]+)@([0-9a-f]{40})", path.read_text(encoding="utf-8"))
    }
    assert len({name for name, _ in pins}) == len(pins)
