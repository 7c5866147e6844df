"""The site built by `make docs`, opened from disk in Chromium, loads no external resources."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxrl_sql

SITE = Path(__file__).parents[2] / "build" / "docs" / "site"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.docs,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # playwright's own event loop
]


def page(name: str) -> str:
    return (SITE / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("name", sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")) or ["none"])
def test_a_page_loads_no_external_resources(name: str) -> None:
    text = page(name)
    tags = re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*>", text)
    # A canonical or next page is a link that is not loaded.
    tags = [tag for tag in tags if not re.search(r"rel=\"?(?:canonical|next|prev)", tag)]
    loaded = [item for tag in tags for item in re.findall(r"\b(?:src|href)=\"?([^\s\">]+)", tag)]
    assert loaded
    assert [entry for entry in loaded if re.match(r"(?:https?:)?//", entry)] == []


def test_search_works_from_disk_and_dark_mode_follows_the_system(browser: Any) -> None:
    context = browser.new_context(color_scheme="dark", viewport={"width": 1200, "height": 800})
    opened = context.new_page()
    requests, errors = [], []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto((SITE / "index.html").as_uri())
    assert opened.evaluate("document.body.dataset.mdColorScheme") == "slate"
    opened.keyboard.press("/")
    opened.locator("input:focus").wait_for(timeout=20_000)
    opened.keyboard.type("adapters", delay=50)
    opened.get_by_text(re.compile(r"^[1-9]\d* results")).wait_for(timeout=20_000)
    context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []


HITS = """() => {
  const links = [];
  const collect = (root) => root.querySelectorAll("*").forEach((element) => {
    if (element.shadowRoot) collect(element.shadowRoot);
    if (element.matches('a[href*="?h="]')) links.push(element.getAttribute("href").split("?")[0]);
  });
  collect(document);
  return links;
}"""


@pytest.mark.parametrize(
    ("text", "name"),
    [("2 GPUs", "howto/two_gpus.html"), ("ollama", "howto/llama_cpp.html"), ("metrics", "reference/metrics.html")],
)
def test_a_search_finds_the_page(browser: Any, text: str, name: str) -> None:
    """Within the first five pages."""
    opened = browser.new_page()
    opened.goto((SITE / "index.html").as_uri())
    opened.keyboard.press("/")
    opened.locator("input:focus").wait_for(timeout=20_000)
    opened.keyboard.type(text, delay=50)
    opened.wait_for_function(f"() => ({HITS})().length > 0", timeout=20_000)
    opened.wait_for_timeout(500)  # the results for the last letter
    pages = list(dict.fromkeys(opened.evaluate(HITS)))
    opened.close()
    assert (SITE / name).as_uri() in pages[:5]


def test_code_fits_a_window_of_1280_px(browser: Any) -> None:
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    wide = {}
    for path in sorted(SITE.rglob("*.html")):
        opened.goto(path.as_uri())
        blocks = (
            "[...document.querySelectorAll('article pre > code')].filter((code) => code.scrollWidth > code.clientWidth)"
        )
        if count := opened.evaluate(f"() => {blocks}.length"):
            wide[path.relative_to(SITE).as_posix()] = count
    opened.close()
    assert wide == {}


def test_the_notebook_has_outputs() -> None:
    text = page("notebooks/quickstart.md")
    assert len(re.findall(r"━+ +step \d+/10", text)) == 1, "a run in a notebook has one output, its last"
    assert re.search(r"step 10/10.*\n.*accuracy +reward .*\n.*[\d.]+% +0\.\d+", text)
    assert "reading the weights" in text
    assert re.search(r"dev: accuracy [\d.]+ % before GRPO, [\d.]+ % after", text)
    assert "\x1b" not in text
    assert "Warning" not in text
    assert len(re.findall(r"<td>(?:1\.0|0\.\d+)</td>", text)) >= 8, "the rewards of a group"
    assert list((SITE / "notebooks").glob("*.png"))
    assert "SELECT" in text.partition("## Ask")[2]
    assert "quickstart_start" not in page("notebooks/quickstart.html").partition("<article")[0]


def test_view_screenshots_are_included() -> None:
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page("pictures.md"))
    assert len(shown) == 3
    assert all((SITE / name).stat().st_size > 20_000 for name in shown), "empty pages are smaller"


def test_llms_txt_links_to_pages() -> None:
    lines = [line for line in page("llms.txt").splitlines() if line.startswith("- ")]
    links = [re.fullmatch(r"- \[[^\]]+\]\(([^)]+)\): \S.*", line) for line in lines]
    assert len(links) > 25
    assert [line for line, link in zip(lines, links, strict=True) if not link or not (SITE / link[1]).exists()] == []


def test_the_api_has_its_docstrings() -> None:
    text = page("api/jaxrl_sql.html")
    modules = jaxrl_sql._MODULES
    for name in set(jaxrl_sql.__all__) - {"Executor"}:
        assert f'id="jaxrl_sql.{modules.get(name, "api")}.{name}"' in text
    assert 'id="sqlexec_rs._native.Executor"' in text
    assert "Ask a question about a database" in text
    assert 'id="sqlexec_rs._native.Executor.execute"' in page("api/sqlexec_rs.html")
