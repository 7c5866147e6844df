"""The build backend of this package: maturin's, with the worker program and the licences of others in the wheel.

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
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
from third_party import write_notices

HERE = Path(__file__).parent
WORKER = "sqlexec-worker"
Settings = Mapping[str, Any] | None


def settle_lock() -> None:
    """Take out of a source distribution's lock what it lacks: members of the workspace that are not packed, and theirs.

    cargo does that by itself when it need not keep to the lock. No version may change, so another one is refused.
    """
    lock = HERE / "Cargo.lock"
    if not lock.exists():  # in the repository it is above, and whole
        return

    def versions() -> set[tuple[str, str, str]]:
        packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
        return {(package["name"], package["version"], package.get("checksum", "")) for package in packages}

    locked = versions()
    command = ["cargo", "metadata", "--format-version", "1", "--manifest-path", str(HERE / "Cargo.toml")]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    if changed := versions() - locked:
        raise SystemExit(f"cargo would build other versions than those that are locked: {sorted(changed)}")


def build_worker() -> None:
    """Build the worker program and lay it into the Python package."""
    settle_lock()
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


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the notices, which the metadata name, and then, by maturin, the metadata."""
    settle_lock()
    write_notices()
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Write the notices and then, by maturin, the source distribution."""
    write_notices()
    return maturin.build_sdist(sdist_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the worker and then, by maturin, the wheel."""
    build_worker()
    write_notices()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the worker and then, by maturin, the wheel of an editable installation."""
    build_worker()
    write_notices()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


if __name__ == "__main__":
    build_worker()
    write_notices()
