"""Licences of the dependencies: every crate in the wheel and every installed package has an allowed licence.

To add a dependency under another licence, read that licence and add it here, or choose another dependency.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]

# Licences that allow distribution, changed or not, with attribution; by SPDX identifier.
PERMISSIVE = frozenset({
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "ISC", "MIT", "PSF-2.0", "Unicode-3.0", "Unlicense", "Zlib",
})  # fmt: skip
# For a separately installed package only: changes to its files must be published.
BESIDE = PERMISSIVE | {"MPL-2.0"}

# Classifiers or licence fields of packages without an SPDX expression.
WORDS = {
    "Apache Software License": "Apache-2.0", "Apache 2.0 License": "Apache-2.0", "Apache License 2.0": "Apache-2.0",
    "MIT License": "MIT", "BSD License": "BSD-3-Clause", "3-Clause BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Return whether allowed licences satisfy an SPDX expression; old crates write OR as a slash."""
    tokens = re.findall(r"\(|\)|[^\s()]+(?:\s+WITH\s+[^\s()]+)?", expression.replace("/", " OR "))
    place = 0

    def one() -> bool:
        nonlocal place
        place += 1
        if tokens[place - 1] != "(":
            return " ".join(tokens[place - 1].split()) in allowed
        result = either()
        place += 1  # the closing parenthesis
        return result

    def both() -> bool:
        nonlocal place
        results = one()
        while place < len(tokens) and tokens[place] == "AND":
            place += 1
            results = one() and results
        return results

    def either() -> bool:
        nonlocal place
        actual = both()
        while place < len(tokens) and tokens[place] == "OR":
            place += 1
            actual = both() or actual
        return actual

    return either() and place == len(tokens)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("MIT", True), ("GPL-3.0-only", False), ("GPL-3.0-only OR MIT", True), ("GPL-3.0-only AND MIT", False),
        ("MIT/Apache-2.0", True), ("(MIT OR GPL-2.0-only) AND Unicode-3.0", True), ("(GPL-2.0-only) AND MIT", False),
        ("MIT OR GPL-2.0-only AND GPL-3.0-only", True), ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only WITH GCC-exception-3.1", False), ("MIT MIT", False),
    ],
)  # fmt: skip
def test_spdx_expression_examples(expression: str, holds: bool) -> None:
    assert is_allowed(expression, PERMISSIVE) == holds


def test_every_crate_in_the_wheel_has_an_allowed_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "sqlexec_rs"))
    monkeypatch.delitem(sys.modules, "third_party", raising=False)
    import third_party  # type: ignore[import-not-found]

    crates = third_party.linked_crates(ROOT / "sqlexec_rs/py/Cargo.toml")
    assert {"rusqlite", "pyo3", "rustls"} <= {crate["name"] for crate in crates}
    stated = {f"{crate['name']} {crate['version']}": crate["license"] or "" for crate in crates}
    assert {name: item for name, item in stated.items() if not is_allowed(item or "none", PERMISSIVE)} == {}


def installed() -> Iterator[Distribution]:
    """Yield the installed packages that `pip install 'jaxrl-sql[train]'` requires."""
    seen, waiting = set[tuple[str, frozenset[str]]](), [("jaxrl-sql", frozenset({"train"}))]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            result = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        yield result
        for requirement in map(Requirement, result.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))


def licence_of(package: Distribution) -> str:
    """Return the SPDX expression of a package's licence from its metadata; "" if unknown.

    Several classifiers are alternatives only if an expression says so; otherwise all apply.
    """
    about = package.metadata
    licence = (about.get("License") or "").strip()
    if expression := about.get("License-Expression") or (licence if is_allowed(licence or "none", BESIDE) else ""):
        return expression
    classes = [item.rpartition(" :: ")[2] for item in about.get_all("Classifier") or () if item.startswith("License")]
    names = classes or licence.splitlines()[:1]
    return " AND ".join(WORDS.get(entry, "unknown") for entry in names)


def test_every_installed_dependency_has_an_allowed_licence() -> None:
    packages = {item.metadata["Name"]: item for item in installed()}
    assert {"jax", "numpy", "rich", "sqlexec-rs"} <= packages.keys()
    stated = {name: licence_of(entry) for name, entry in packages.items()}
    assert {name: element for name, element in stated.items() if not is_allowed(element or "none", BESIDE)} == {}
