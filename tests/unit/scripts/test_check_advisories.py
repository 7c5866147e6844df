"""Advisories are matched by version, in folders with the form of the two databases."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check_advisories.py"
CRATE = """```toml
[advisory]
id = "RUSTSEC-2030-0001"
package = "{name}"
{more}
[versions]
patched = [">= 1.2.3, < 1.3.0", ">= 1.4.1"]
unaffected = ["< 0.5"]
```
# The description
"""
PACKAGE = """id: PYSEC-2030-1
details: Words of
  two lines.
affected:
- package: {name: Some.Package, ecosystem: PyPI}
  ranges:
  - {type: GIT, events: [{introduced: "0"}]}
  - {type: ECOSYSTEM, events: [{introduced: "0"}, {fixed: "1.5"}, {introduced: "2.0"}, {last_affected: "2.2"}]}
  versions: [1.7.post1]
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_advisories", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "requirement", "holds"),
    [
        ("1.2.3", ">= 1.2.3, < 1.3.0", True), ("1.3.0", ">= 1.2.3, < 1.3.0", False), ("1.4.0", "> 1.3", True),
        ("0.3.9", "^0.3.1", True), ("0.4.0", "^0.3.1", False), ("2.9.0", "^2.1", True), ("3.0.0", "2.1", False),
        ("0.0.3", "^0.0.3", True), ("0.0.4", "^0.0.3", False), ("1.2.9", "~1.2.3", True), ("1.3.0", "~1.2.3", False),
        ("1.0.0-rc.1", ">= 1.0.0", False), ("1.0.0", "= 1.0.0", True), ("1.0.1", "=1.0.0", False),
    ],
)  # fmt: skip
def test_requirements_have_the_meaning_of_cargo(
    script: ModuleType, version: str, requirement: str, holds: bool
) -> None:
    assert script.is_within(version, requirement) == holds


def test_affected_crates_are_listed(script: ModuleType, tmp_path: Path) -> None:
    for name, more in (("one", ""), ("taken-back", 'withdrawn = "2030-01-02"'), ("left", 'informational = "unsound"')):
        (tmp_path / "crates" / name).mkdir(parents=True)
        (tmp_path / "crates" / name / "RUSTSEC-2030-0001.md").write_text(CRATE.format(name=name, more=more))
    versions = ("0.4.9", "0.5.0", "1.2.3", "1.3.0", "1.4.1")
    crates = [("one", version) for version in versions] + [("taken-back", "1.3.0"), ("left", "1.3.0"), ("other", "1")]
    advisories = [line.split(";")[0] for line in script.find_crate_advisories(tmp_path, crates)]
    assert advisories == [
        "RUSTSEC-2030-0001: one 0.5.0: vulnerability", "RUSTSEC-2030-0001: one 1.3.0: vulnerability",
        "RUSTSEC-2030-0001: left 1.3.0: unsound",
    ]  # fmt: skip


def test_affected_package_versions_are_listed(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "vulns/some-package").mkdir(parents=True)
    (tmp_path / "vulns/some-package/PYSEC-2030-1.yaml").write_text(PACKAGE)
    versions = ("1.4", "1.5", "1.7.post1", "1.9", "2.0", "2.2", "2.3")
    lines = list(script.find_package_advisories(tmp_path, [("some-package", version) for version in versions]))
    assert [line.split()[2].rstrip(":") for line in lines] == ["1.4", "1.7.post1", "2.0", "2.2"]
    assert lines[0].endswith(": Words of two lines.")


def test_command_checks_all_packages_and_rejects_an_invalid_database(tmp_path: Path) -> None:
    (tmp_path / "crates").mkdir()
    command = [sys.executable, str(SCRIPT), "--rustsec", str(tmp_path), "--pypa"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2, f"check_advisories.py: error: {tmp_path}: contains no folder vulns/, so it is not a clone of that database",
    )  # fmt: skip
    (tmp_path / "vulns").mkdir()
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[-2:]) == (0, ["0", "advisories"])
    assert int(done.stdout.split()[0]) > 100, "crates"
