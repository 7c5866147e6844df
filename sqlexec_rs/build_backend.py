"""The build backend of this package: maturin's, plus the worker program and third-party licences in the wheel.

A maturin wheel contains one kind of target, here the extension module. So cargo first builds the program
`sqlexec-worker`, with the same profile in the same target folder (SQLite is compiled once for both). It is copied into
the Python package, from which maturin packs it. Run this file before calling maturin directly.
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
from maturin import (  # noqa: F401  maturin's own hooks
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
from third_party import write_notices

HERE = Path(__file__).parent
WORKER = "sqlexec-worker"
Settings = Mapping[str, Any] | None


def settle_lock() -> None:
    """Remove from a source distribution's lock file the workspace members that are not packed, and their dependencies.

    cargo does this itself when it may change the lock file. Changed versions are refused.
    """
    lock = HERE / "Cargo.lock"
    if not lock.exists():  # in the repository it is in the parent folder and complete
        return

    def versions() -> set[tuple[str, str, str]]:
        packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
        return {(package["name"], package["version"], package.get("checksum", "")) for package in packages}

    locked = versions()
    command = ["cargo", "metadata", "--format-version", "1", "--manifest-path", str(HERE / "Cargo.toml")]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    if changed := versions() - locked:
        raise SystemExit(f"cargo would build versions that differ from the lock file: {sorted(changed)}")


def build_worker() -> None:
    """Build the worker program and copy it into the Python package."""
    settle_lock()
    if os.name != "posix":
        raise SystemExit("sqlexec_rs requires Unix to start, limit and kill worker processes")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise SystemExit("cargo is not on the PATH, but sqlexec_rs requires it: install Rust from https://rustup.rs")
    options = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["maturin"]
    # Naming the binding selects the same features as for the module, so that the compiled crates are reused.
    command = [cargo, "build", "--release", "--locked", "--package", "sqlexec_core", "--package", "sqlexec_py"]
    command += ["--bin", WORKER, "--message-format", "json-render-diagnostics"]
    command += ["--manifest-path", str(HERE / options["manifest-path"])]
    print(f"Running `{' '.join(command)}`", flush=True)
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, check=True)
    messages = map(json.loads, done.stdout.splitlines())
    (executable,) = [message["executable"] for message in messages if message.get("target", {}).get("name") == WORKER]
    copied = shutil.copy2(executable, HERE / options["python-source"] / "sqlexec_rs" / WORKER)
    if strip := shutil.which("strip"):
        subprocess.run([strip, copied], check=True)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the notices, which the metadata lists, then the metadata with maturin."""
    settle_lock()
    write_notices()
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Write the notices, then the source distribution with maturin."""
    write_notices()
    return maturin.build_sdist(sdist_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the worker, then the wheel with maturin."""
    build_worker()
    write_notices()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the worker, then the wheel of an editable installation with maturin."""
    build_worker()
    write_notices()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


if __name__ == "__main__":
    build_worker()
    write_notices()
