"""Look up advisories on this project's dependencies: crates in RustSec's database, packages in PyPA's.

`python scripts/check_advisories.py --rustsec FOLDER --pypa FOLDER` reads clones of github.com/rustsec/advisory-db and
github.com/pypa/advisory-database, and downloads nothing. It looks up the crates of Cargo.lock and the packages of this
Python's environment, except pip. The exit code is 1 if an advisory applies.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENT = re.compile(r"(>=|<=|>|<|=|\^|~|)\s*([0-9][^\s,]*)")


def read_locked_crates(lock: Path) -> list[tuple[str, str]]:
    """Return (name, version) of each third-party crate of a Cargo.lock."""
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    return [(package["name"], package["version"]) for package in packages if "source" in package]


def list_installed_packages() -> list[tuple[str, str]]:
    """Return (canonical name, version) of each installed package except pip."""
    result = {
        (canonicalize_name(distribution.metadata["Name"]), distribution.version) for distribution in distributions()
    }
    return sorted(item for item in result if item[0] != "pip")


def is_within(version: str, requirement: str) -> bool:
    """Return whether a crate's version satisfies a Cargo requirement such as `>= 1.2, < 1.4` or `^0.3`."""
    parts = []
    for operator, number in _REQUIREMENT.findall(requirement):
        if operator in ("", "^", "~"):
            least = Version(number)
            fixed = 1 if operator == "~" and len(least.release) > 1 else _find_fixed_component(least.release, operator)
            over = [*least.release[:fixed], least.release[fixed] + 1]
            parts += [f">={number}", f"<{'.'.join(map(str, over))}"]
        else:
            parts.append(f"{'==' if operator == '=' else operator}{number}")
    return SpecifierSet(",".join(parts)).contains(Version(version), prereleases=True)


def _find_fixed_component(release: tuple[int, ...], operator: str) -> int:
    """Return the index of the component that a caret fixes, the first nonzero one; for a tilde the first."""
    return 0 if operator == "~" else next((i for i, item in enumerate(release) if item), len(release) - 1)


def find_crate_advisories(database: Path, crates: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each RustSec advisory that applies to a crate."""
    for name, version in crates:
        for path in sorted((database / "crates" / name).glob("RUSTSEC-*.md")):
            output = tomllib.loads(path.read_text(encoding="utf-8").partition("```toml\n")[2].partition("\n```")[0])
            about, versions = output["advisory"], output.get("versions", {})
            patched, unaffected = versions.get("patched", []), versions.get("unaffected", [])
            if "withdrawn" not in about and not any(is_within(version, item) for item in patched + unaffected):
                kind = about.get("informational", "vulnerability")
                yield f"{about['id']}: {name} {version}: {kind}; patched: {', '.join(patched) or 'nowhere'}"


def find_package_advisories(database: Path, packages: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each PyPA advisory that applies to a package."""
    for name, version in packages:
        for path in sorted((database / "vulns" / name).glob("PYSEC-*.yaml")):
            output = yaml.safe_load(path.read_text(encoding="utf-8"))
            if "withdrawn" not in output and any(_is_affected(item, name, version) for item in output["affected"]):
                yield f"{output['id']}: {name} {version}: {' '.join(output.get('details', '').split())[:100]}"


def _is_affected(affected: Mapping[str, Any], name: str, version: str) -> bool:
    """Return whether an entry in OSV format affects a version of a package."""
    if canonicalize_name(affected["package"]["name"]) != name:
        return False
    if version in affected.get("versions", ()):
        return True
    ranges = [item["events"] for item in affected.get("ranges", ()) if item["type"] == "ECOSYSTEM"]
    return any(_is_between(events, Version(version)) for events in ranges)


def _is_between(events: list[dict[str, str]], version: Version) -> bool:
    """Return whether a version is between `introduced` and `fixed`, or at most `last_affected`."""
    result = False
    for kind, number in (pair for event in events for pair in event.items()):
        try:
            at = Version(number)
        except InvalidVersion:
            continue
        if kind == "introduced":
            result = result or version >= at
        elif (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            result = False
    return result


def main() -> int:
    """Print the advisories and the numbers of crates and packages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rustsec", type=Path, required=True, metavar="FOLDER", help="a clone of RustSec's database")
    parser.add_argument("--pypa", type=Path, required=True, metavar="FOLDER", help="a clone of PyPA's database")
    args = parser.parse_args()
    for folder, inside in ((args.rustsec, "crates"), (args.pypa, "vulns")):
        if not (folder / inside).is_dir():
            parser.error(f"{folder}: contains no folder {inside}/, so it is not a clone of that database")
    crates, packages = read_locked_crates(ROOT / "Cargo.lock"), list_installed_packages()
    result = [*find_crate_advisories(args.rustsec, crates), *find_package_advisories(args.pypa, packages)]
    print(*result, f"{len(crates)} crates, {len(packages)} packages, {len(result)} advisories", sep="\n")
    return 1 if result else 0


if __name__ == "__main__":
    sys.exit(main())
