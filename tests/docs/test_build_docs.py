"""The pages of the site: each is in the navigation, and README is the first."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "scripts" / "build_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_docs"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(build: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    build.stage(folder)
    return folder


def navigation() -> list[str]:
    def walk(entries: list[dict[str, Any]]) -> Iterator[str]:
        for to in (value for entry in entries for value in entry.values()):
            yield from walk(to) if isinstance(to, list) else [to]

    text = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    return list(walk(tomllib.loads(text)["project"]["nav"]))


def test_every_page_is_in_the_navigation(pages: Path) -> None:
    laid_out = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    assert laid_out | {"notebooks/quickstart.md", "pictures.md"} == set(navigation())


def test_the_readme_is_the_home_page(pages: Path) -> None:
    page, readme = (pages / "index.md").read_text(encoding="utf-8"), (ROOT / "README.md").read_text(encoding="utf-8")
    headings = [line for line in readme.splitlines() if line.startswith("## ")]
    assert headings == [line for line in page.splitlines() if line.startswith("## ")]


def test_links_point_within_the_site(build: ModuleType, pages: Path) -> None:
    text = (
        "[a](docs/reference/files.md#caches) [b](LICENSE) [c](https://x.org) [d](sqlexec_rs/README.md) "
        "![e](docs/compare.png)\n"
        "```\n[f](docs/reference/files.md)\n```\n"
    )
    assert build.rewrite_links(text, "README.md", "howto/x.md", build.places()) == (
        "[a](../reference/files.md#caches) b [c](https://x.org) [d](../api/sqlexec_rs.md) ![e](../compare.png)\n"
        "```\n[f](docs/reference/files.md)\n```\n"
    )
    assert "](docs/" not in (pages / "index.md").read_text(encoding="utf-8")


def test_the_api_page_lists_all_public_names(build: ModuleType) -> None:
    import jaxrl_sql
    import sqlexec_rs

    assert [line.rpartition(".")[2] for line in build.executor_page().splitlines() if line.startswith(":::")] == list(
        sqlexec_rs.__all__
    )
    documented = {line.rpartition(".")[2] for line in build.api_page().splitlines() if line.startswith(":::")}
    assert documented == set(jaxrl_sql.__all__)


def test_first_sentences_are_plain_text(build: ModuleType) -> None:
    text = "# T\n\n<!-- run by x -->\n```sh\nmake. it.\n```\n\nIt [goes](x.md) so\non. And then:\n"
    assert build.first_sentence(text) == "It goes so on."
    assert build.first_sentence("# T\n\n| a |\n|---|\n\nThese are:\n\n- b\n") == "These are"
