"""Links in the pages resolve: files and headings of this repository, and https elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder, depth in ((ROOT, "*.md"), (ROOT / "docs", "**/*.md"), (ROOT / "skills", "**/*.md"))
    for path in folder.glob(depth)
)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")


def prose(text: str) -> str:
    """Return a page without its code."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(path: Path) -> set[str]:
    """Return GitHub's anchors for a page's headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    result = set()
    for title in re.findall(r"^#+ (.+?)\s*$", text, flags=re.MULTILINE):
        message = LINK.sub(lambda link: link[0].partition("](")[0].lstrip("["), title)
        slug = re.sub(r"[^\w\- ]", "", message.strip().lower()).replace(" ", "-")
        result.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        seen[slug] += 1
    return result


def broken(page: str) -> list[str]:
    """Return the links of a page that do not resolve."""
    path = ROOT / page
    result = []
    for target in LINK.findall(prose(path.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        if "://" in name or name.startswith("mailto:"):
            if not name.startswith("https://"):
                result.append(target)
            continue
        to = (path.parent / name).resolve() if name else path
        if not to.is_relative_to(ROOT) or not to.exists() or (anchor and anchor not in anchors(to)):
            result.append(target)
    return result


def test_anchors_match_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `a_b`: It's — so\n\n```sh\n# no heading\n```\n## One\n## One\n## [Words](there.md)\n")
    assert anchors(page) == {"a_b-its--so", "one", "one-1", "words"}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    assert broken(page) == []


def test_a_broken_link_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# A\n[1](b.md) [2](#b) [3](http://x.org) [4](#a) [5](https://x.org) `[6](c.md)`\n")
    assert broken("a.md") == ["b.md", "#b", "http://x.org"]
