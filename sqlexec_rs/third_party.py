"""Write the licences of the code that is compiled into the wheel; called by the build backend.

The list is cargo's, of the crates that the module and its worker link on this platform. The texts are those in the
crates' packages.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOTICES = HERE / "THIRD_PARTY_NOTICES.txt"

_LICENCE = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)
_HEAD = """\
The compiled parts of sqlexec_rs contain third-party code: the crates below, SQLite (in libsqlite3-sys, placed in the
public domain by its authors), mimalloc (in libmimalloc-sys) and Rust's standard library (MIT or Apache-2.0).
"""


def linked_crates(manifest: Path) -> list[dict[str, Any]]:
    """Return cargo's metadata of the linked third-party packages, sorted by name."""
    version = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    host = version.partition("host: ")[2].split()[0]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host]
    done = subprocess.run([*command, "--manifest-path", str(manifest)], cwd=HERE, stdout=subprocess.PIPE, check=True)
    metadata = json.loads(done.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    linked: set[str] = set()
    waiting = [metadata["resolve"]["root"]]
    while waiting:
        package = waiting.pop()
        # Procedural macros run during compilation and are not linked.
        if package in linked or any("proc-macro" in target["kind"] for target in packages[package]["targets"]):
            continue
        linked.add(package)
        dependencies = nodes[package]["deps"]
        waiting += [dep["pkg"] for dep in dependencies if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    others = [packages[package] for package in linked if packages[package]["source"] is not None]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def licence_texts(package: dict[str, Any]) -> list[str]:
    """Return the texts of a crate's licence files, including those of its C sources."""
    root = Path(package["manifest_path"]).parent
    files = [
        path for path in sorted(root.rglob("*")) if _LICENCE.match(path.name) and path.suffix in {"", ".md", ".txt"}
    ]
    texts = [path.read_text(encoding="utf-8", errors="replace").strip() for path in files if path.is_file()]
    return list(dict.fromkeys(filter(None, texts)))


def write_notices() -> Path:
    """Write the file and return its path; raises SystemExit for a crate without any licence."""
    options = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["maturin"]
    by_text: dict[str, list[str]] = {}
    for package in linked_crates(HERE / options["manifest-path"]):
        name = f"{package['name']} {package['version']}"
        stated = package["license"] or package["license_file"]
        texts = licence_texts(package)
        if not stated and not texts:
            raise SystemExit(f"{name} has no licence, so sqlexec_rs cannot be distributed with it")
        origin = f"{name} ({stated}), {package['repository'] or package['homepage'] or 'no address'}"
        for text in texts or [f"Its package contains no text of its licence, {stated}."]:
            by_text.setdefault(text, []).append(origin)
    parts = [_HEAD, *("\n".join([*names, "", text, ""]) for text, names in by_text.items())]
    NOTICES.write_text(f"\n{'-' * 80}\n\n".join(parts), encoding="utf-8")
    return NOTICES


if __name__ == "__main__":
    print(write_notices())
