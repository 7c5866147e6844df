"""Build backend of `jaxrl_sql`: setuptools, with the workspace's version and the executor of the same clone.

In a clone the package requires the executor from the folder `sqlexec_rs`, so `pip install .` builds both. A source
distribution has no such folder. Builds from it (as by `make wheels`) require the published executor, as in
`pyproject.toml`. `--config-settings executor=installed` has the same effect in a clone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  hooks of setuptools
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

HERE = Path(__file__).resolve().parent
VERSION: str = tomllib.loads((HERE / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
Settings = Mapping[str, Any] | None


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the metadata; in a clone they require the executor's folder."""
    name: str = build_meta.prepare_metadata_for_build_wheel(metadata_directory)
    executor = HERE / "sqlexec_rs"
    if (executor / "pyproject.toml").is_file() and (config_settings or {}).get("executor") != "installed":
        path = Path(metadata_directory, name, "METADATA")
        line = f"Requires-Dist: sqlexec-rs @ {executor.as_uri()}"
        requirement = re.compile(r"^Requires-Dist: sqlexec-rs\b.*$", re.MULTILINE)
        text, count = requirement.subn(line, path.read_text(encoding="utf-8"))
        assert count == 1, f"{path} requires the executor {count} times"
        path.write_text(text, encoding="utf-8")
    return name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the wheel with the metadata of `prepare_metadata_for_build_wheel`."""
    with TemporaryDirectory() as scratch:
        metadata = metadata_directory or str(Path(scratch, prepare_metadata_for_build_wheel(scratch, config_settings)))
        return str(build_meta.build_wheel(wheel_directory, None, metadata))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel of an editable installation with the same metadata."""
    with TemporaryDirectory() as scratch:
        metadata = metadata_directory or str(Path(scratch, prepare_metadata_for_build_wheel(scratch, config_settings)))
        return str(build_meta.build_editable(wheel_directory, None, metadata))
