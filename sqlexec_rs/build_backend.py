"""The build backend of this package: maturin's, with the worker program in the wheel.

A wheel of maturin's holds one kind of target, and here that is the extension module. So cargo builds the program
`sqlexec-worker` first, with the same profile in the same target folder (SQLite is compiled once for both), and it is
laid into the Python package, from where maturin packs it. Whoever calls maturin directly runs this file first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import (  # noqa: F401  these hooks are maturin's own
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

HERE = Path(__file__).parent
WORKER = "sqlexec-worker"
Settings = Mapping[str, Any] | None


def build_worker() -> None:
    """Build the worker program and lay it into the Python package."""
    if os.name != "posix":
        raise SystemExit("sqlexec_rs needs Unix: it starts, limits and kills worker processes as Unix does")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise SystemExit("sqlexec_rs is built by cargo, which is not on the PATH: install Rust from https://rustup.rs")
    options = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["maturin"]
    # With the binding named, features are those that the module is built with: what is compiled here serves both.
    command = [cargo, "build", "--release", "--locked", "--package", "sqlexec_core", "--package", "sqlexec_py"]
    command += ["--bin", WORKER, "--message-format", "json-render-diagnostics"]
    command += ["--manifest-path", str(HERE / options["manifest-path"])]
    print(f"Running `{' '.join(command)}`", flush=True)
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, check=True)
    messages = map(json.loads, done.stdout.splitlines())
    (built,) = [message["executable"] for message in messages if message.get("target", {}).get("name") == WORKER]
    laid = shutil.copy2(built, HERE / options["python-source"] / "sqlexec_rs" / WORKER)
    if strip := shutil.which("strip"):
        subprocess.run([strip, laid], check=True)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the worker and then, by maturin, the wheel."""
    build_worker()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the worker and then, by maturin, the wheel of an editable installation."""
    build_worker()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


if __name__ == "__main__":
    build_worker()
