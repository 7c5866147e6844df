"""The built module: SQLite's compile options, the stubs, and import without jax."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import tarfile
from importlib.metadata import files
from pathlib import Path

import pytest

import sqlexec_rs

ROOT = Path(__file__).parents[2]


def test_sqlite_is_built_for_many_threads() -> None:
    names = {option.split("=")[0]: option for option in sqlexec_rs.compile_options()}
    assert names["THREADSAFE"] == "THREADSAFE=1"
    # A single page pool behind a mutex has a quarter of the speed with two threads.
    assert "ENABLE_MEMORY_MANAGEMENT" not in names
    # Checks that .cargo/config.toml was read: libsqlite3-sys enables this, and our flags disable it.
    assert "ENABLE_LOAD_EXTENSION" not in names


@pytest.mark.slow
def test_source_distribution_contains_the_build_configuration(tmp_path: Path) -> None:
    code = f"import build_backend; build_backend.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "sqlexec_rs", check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    folder = archive.with_suffix("").with_suffix("")
    for name in (
        ".cargo/config.toml",
        "LICENSE",
    ):  # both are in the package's folder, with the content of the repository's
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert "LIBSQLITE3_FLAGS" in (folder / ".cargo/config.toml").read_text(encoding="utf-8")
    assert {"build_backend.py", "third_party.py", "Cargo.lock", "THIRD_PARTY_NOTICES.txt"} <= {
        path.name for path in folder.iterdir()
    }
    # The lock matches the packed files, so that a build can require the locked versions.
    code = "import build_backend, third_party; build_backend.settle_lock(); third_party.write_notices()"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)


def test_wheel_contains_its_licence_and_third_party_licences() -> None:
    texts = {file.name: file for file in files("sqlexec-rs") or [] if "licenses" in file.parts}
    assert texts["LICENSE"].read_text() == (ROOT / "LICENSE").read_text(encoding="utf-8")
    notices = texts["THIRD_PARTY_NOTICES.txt"].read_text()
    for name in ("rusqlite", "libsqlite3-sys", "libmimalloc-sys", "pyo3", "arrow-array", "rustix", "postcard"):
        assert re.search(rf"^{name} \d+\.\d+\.\d+ \(.*\), https://", notices, re.MULTILINE), name
    assert "Permission is hereby granted" in notices
    assert "Apache License" in notices


def test_mathematical_functions_are_available(tmp_path: Path) -> None:
    assert "ENABLE_MATH_FUNCTIONS" in sqlexec_rs.compile_options()
    sqlite3.connect(tmp_path / "t.sqlite").close()
    sql = (
        "SELECT SQRT(16), POWER(2, 10), POW(2, -1), ROUND(LOG10(1000), 9), CEIL(1.2), FLOOR(-1.2), MOD(7, 3), SQRT(-1)"
    )
    (row,) = sqlexec_rs.Executor(threads=1).execute(tmp_path / "t.sqlite", sql).rows
    assert row == (4.0, 1024.0, 0.5, 3.0, 2.0, -2.0, 1.0, None)


def test_double_quoted_strings_work() -> None:
    assert not [option for option in sqlexec_rs.compile_options() if option.startswith("DQS")]


def test_version_matches_the_workspace() -> None:
    stated = re.search(r"SQLite is bundled \((\d+\.\d+\.\d+)", (ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    assert stated is not None
    assert sqlexec_rs.sqlite_version() == stated[1]


def test_stubs_match_the_module() -> None:
    command = [sys.executable, "scripts/check_stubs.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_stubs_detects_a_difference(tmp_path: Path) -> None:
    stub = Path(sqlexec_rs.__file__).with_name("_native.pyi").read_text(encoding="utf-8")
    broken = stub.replace("def progress(self)", "def progres(self)").replace("max_open: int = 512", "max_open: int")
    (tmp_path / "broken.pyi").write_text(broken, encoding="utf-8")
    command = [sys.executable, "scripts/check_stubs.py", "--stub", str(tmp_path / "broken.pyi")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Job.progres is in the stub and not in the module" in done.stdout
    assert "Executor: the stub has" in done.stdout


def test_import_loads_no_heavy_packages() -> None:
    heavy = {"jax", "torch", "jaxrl_sql", "numpy", "pandas", "polars", "pyarrow", "asyncio"}
    code = f"import sys, sqlexec_rs; print([m for m in sys.modules if m.split('.')[0] in {heavy}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
