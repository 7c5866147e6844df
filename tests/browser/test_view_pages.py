"""The pages in Chromium: from disk and over loopback, by mouse and keyboard, narrow and dark, with hostile texts.

`JAXRL_SQL_SHOTS=FOLDER` stores a screenshot of each tested page.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.commands.view import main
from jaxrl_sql.report.groups import open_result_folder
from jaxrl_sql.report.html import write_report
from jaxrl_sql.report.view.folder import View
from jaxrl_sql.text2sql.evals.side_by_side import side_by_side, write_comparison

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="needs playwright"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # playwright's own event loop
]

Open = Callable[..., Any]


def expect(locator: Any) -> Any:
    """Return playwright's assertions on a locator, which wait until they hold."""
    from playwright.sync_api import expect as expect_of

    return expect_of(locator)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # half a second, which no other test needs

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Open]:
    """Return a function that opens a page; at the end no page may have errors or have run injected code."""
    pages, errors = [], []

    def open_url(address: str, width: int = 1100, scheme: str = "light") -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda output: errors.append(output.text) if output.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.goto(address)
        pages.append(page)
        return page

    yield open_url
    for page in pages:
        assert page.evaluate("window.harmed") is None
        page.context.close()
    assert errors == []


@pytest.fixture(scope="module")
def run(view_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = view_runs.write_run(tmp_path_factory.mktemp("runs") / "run", steps=range(1, 5))
    assert main([str(folder)]) == 0
    return folder


@pytest.fixture
def index(run: Path) -> str:
    return (run / "view" / "index.html").as_uri()


def screenshot(page: Any, name: str) -> None:
    if folder := os.environ.get("JAXRL_SQL_SHOTS"):
        page.screenshot(path=str(Path(folder, f"{name}.png")), full_page=True)


# The texts of elements, and their number of lines.
LINES = """(all) => all.map((one) => { const range = document.createRange(); range.selectNodeContents(one);
    return [one.textContent, new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size]; })"""


def is_no_wider_than_the_window(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_the_first_page_opens_from_disk(open_page: Open, index: str) -> None:
    page = open_page(index)
    page.get_by_role("heading", name="run", exact=True).wait_for()
    assert "14" not in page.get_by_role("table").inner_text().splitlines()[0]
    assert "50.0 %" in page.get_by_role("row", name="dev").inner_text()
    assert "1 better, 1 worse of 2, from step 0 to 9" in page.inner_text("main")
    assert page.locator("main p").first.inner_text().startswith("Accuracy on dev was 50.0 % (95 % interval ")
    page.locator("figure").first.scroll_into_view_if_needed()
    page.locator("figure svg").first.wait_for()
    titles = page.locator("figure").first.locator("svg .role-axis-title").all_text_contents()
    assert titles == ["step", "reward"]
    reward = page.locator("figure").first.locator("svg .role-axis-label").first.locator("text").all_text_contents()
    assert reward == ["1", "2", "3", "4"], "each step of a short run, and none between two steps"
    accuracy = page.locator("figure").filter(has=page.get_by_text("Accuracy", exact=True))
    accuracy.scroll_into_view_if_needed()
    accuracy.locator("svg").wait_for()
    assert "bars: 95 % interval" in accuracy.inner_text()
    assert accuracy.locator("svg .mark-rule:not(.role-axis-grid) line").count() >= 2
    assert accuracy.locator("svg .role-legend-label").all_text_contents() == ["dev"]
    steps = accuracy.locator("svg .role-axis-label").first.locator("text").all_text_contents()
    assert len(set(steps)) == len(steps) > 1
    status = page.locator("figure").filter(has=page.get_by_text("SQL by status", exact=True))
    status.scroll_into_view_if_needed()
    assert status.locator("svg .role-legend-label").all_text_contents() == ["ok"]
    assert "Reward: mean from 0.1 in step 1 to 0.4 in step 4" in page.locator(".chart").first.get_attribute(
        "aria-label"
    )
    screenshot(page, "run")


def test_filters_and_links(open_page: Open, index: str, view_runs: ModuleType) -> None:
    page = open_page(f"{index}#/groups")
    status = page.get_by_role("status")
    expect(status).to_have_text("12 of 12 groups")
    for label, choice, count in (("phase", "grpo", 8), ("status", "no_sql", 4), ("difficulty", "hard", 4)):
        page.get_by_label(label, exact=True).select_option(choice)
        expect(status).to_have_text(f"{count} of 12 groups")
    page.get_by_label("steps from").fill("3")
    expect(status).to_have_text("2 of 12 groups")
    screenshot(page, "groups")
    page.get_by_role("button", name="all").click()
    expect(status).to_have_text("12 of 12 groups")
    dots = page.locator(".list tbody tr").filter(has_text="Which items, q1?").locator(".dots")
    assert (dots.inner_text(), dots.get_attribute("aria-label")) == ("●○", "2 answers, 1 right")
    assert page.locator(".list .pill.good, .list .pill.bad").count() == 0
    page.get_by_role("searchbox").fill("ITEMS, Q2")
    expect(status).to_have_text("1 of 12 groups")
    page.get_by_role("searchbox").fill(view_runs.HOSTILE[:40])
    expect(status).to_have_text("5 of 12 groups")
    page.get_by_role("searchbox").fill("")
    for only, count in (("suspicious", 4), ("constant", 4), ("flipped", 4), ("better", 2), ("nosignal", 0)):
        page.get_by_label("only").select_option(only)
        expect(status).to_have_text(f"{count} of 12 groups")
    page.goto(f"{index}#/groups?phase=grpo&hardness=easy")
    page.get_by_role("link", name="Which items, q1?").click()
    page.get_by_role("heading", name="q1").wait_for()
    page.get_by_role("link", name="next").click()
    page.get_by_role("heading", name="q2").wait_for()
    page.get_by_role("link", name="all of this question").click()
    expect(status).to_have_text("1 of 12 groups of question q2")


def test_a_group_shows_its_answers_side_by_side(open_page: Open, index: str) -> None:
    page = open_page(f"{index}#/groups?text=q1%3F")
    page.get_by_role("link", name="Which items, q1?").click()
    for number, verdict, tone in ((1, "right", "good"), (2, "wrong", "bad")):
        card = page.get_by_role("article", name=f"answer {number}")
        assert card.locator("header .pill.good, header .pill.bad").all_inner_texts() == [verdict]
        assert tone in (card.get_by_text(verdict, exact=True).get_attribute("class") or "").split()
        assert card.get_by_text("ok", exact=True).get_attribute("class").split() == ["pill"]
    second = page.get_by_role("article", name="answer 2")
    assert "advantage -0.5" in second.inner_text()
    assert "✗ bird" in second.inner_text()
    assert second.get_by_role("cell", name="no row").count() > 0
    assert second.locator("mark").first.inner_text() == "cup"
    second.get_by_text("the whole answer, 3 turns").click()
    assert "environment" in second.inner_text()
    second.get_by_role("button", name="probabilities").click()
    first = second.locator(".tokens span").first
    first.wait_for()
    assert (first.inner_text(), first.get_attribute("title")) == ("SELECT", "p = 0.819")
    page.get_by_text("schema of shop").click()
    page.get_by_text("CREATE TABLE item").wait_for()
    screenshot(page, "group")


def test_hostile_texts_are_escaped(open_page: Open, index: str, view_runs: ModuleType) -> None:
    page = open_page(f"{index}#/groups?hardness=hard")
    page.locator(".list tbody a").first.click()
    page.get_by_role("article").first.wait_for()
    shown = view_runs.HOSTILE.replace("\u2028", "").split("{{")[0].strip()
    assert shown[:60] in page.inner_text("main")
    page.get_by_text("the whole answer").first.click()
    assert page.locator("main img, main script").count() == 0
    assert "reads no table" in page.inner_text("main")
    screenshot(page, "hostile")


def test_two_evaluations_question_by_question(open_page: Open, index: str) -> None:
    page = open_page(f"{index}#/compare")
    expect(page.get_by_role("link", name="worse in b: 1")).to_be_visible()
    page.get_by_role("link", name="better in b: 1").click()
    page.get_by_role("link", name="Which items, e2?").click()
    page.get_by_role("article", name="dev, step 9").wait_for()
    assert page.get_by_role("article").count() == 2
    screenshot(page, "pair")


def test_two_runs_are_compared(open_page: Open, run: Path, tmp_path: Path, view_runs: ModuleType) -> None:
    other = view_runs.write_run(tmp_path / "other", steps=(1,))
    assert main([str(run), str(other), "--out", str(tmp_path / "out")]) == 0
    page = open_page((tmp_path / "out" / "index.html").as_uri())
    page.get_by_role("heading", name="run and other").wait_for()
    page.get_by_role("link", name="compare", exact=True).click()
    assert "run: dev, step 9" in page.get_by_label("a", exact=True).inner_text()
    expect(page.get_by_role("link", name="right in both: 1")).to_be_visible()
    screenshot(page, "two")


def test_evaluations_open(open_page: Open, tmp_path: Path, view_runs: ModuleType) -> None:
    folder = view_runs.write_evaluation(tmp_path / "first", {"a": 1.0, "b": 0.0})
    assert main([str(folder), "--out", str(tmp_path / "out")]) == 0
    page = open_page((tmp_path / "out" / "index.html").as_uri())
    page.get_by_role("heading", name="By every rule").wait_for()
    head = page.get_by_role("table").filter(has_text="95 % interval").get_by_role("columnheader")
    assert head.all_inner_texts() == ["set", "rule", "share", "95 % interval"]
    page.goto(f"{(tmp_path / 'out' / 'index.html').as_uri()}#/group/0.0")
    page.get_by_role("article").wait_for()
    assert page.locator("mark").all_inner_texts() == ["cup", "pot"]
    assert "the same rows with different multiplicities" in page.inner_text("main")


def test_rules_of_a_single_set_have_no_column_for_its_name(
    open_page: Open, tmp_path: Path, view_runs: ModuleType
) -> None:
    folder = view_runs.write_evaluation(tmp_path / "first", {"a": 1.0})
    (folder / "metrics.json").write_text('{"accuracy": 0.5, "bird": 0.5, "bird/low": 0.2, "bird/high": 0.8}')
    assert main([str(folder), "--out", str(tmp_path / "out")]) == 0
    page = open_page((tmp_path / "out" / "index.html").as_uri())
    page.get_by_role("heading", name="By every rule").wait_for()
    head = page.get_by_role("table").filter(has_text="95 % interval").get_by_role("columnheader")
    assert head.all_inner_texts() == ["rule", "share", "95 % interval"]


def test_a_comparison_opens(open_page: Open, tmp_path: Path, view_runs: ModuleType) -> None:
    first = view_runs.write_evaluation(tmp_path / "first", {"a": 1.0, "b": 0.0, "c": 1.0})
    second = view_runs.write_evaluation(tmp_path / "second", {"a": 0.0, "b": 1.0, "c": 1.0})
    write_comparison(side_by_side(first, second), tmp_path / "compared")
    assert main([str(tmp_path / "compared"), "--out", str(tmp_path / "out")]) == 0
    page = open_page(f"{(tmp_path / 'out' / 'index.html').as_uri()}#/groups?only=flipped")
    status = page.get_by_role("status")
    expect(status).to_have_text("2 of 2 groups")
    page.get_by_label("only").select_option("worse")
    expect(status).to_have_text("1 of 2 groups")
    page.get_by_role("link", name="compare", exact=True).click()
    expect(page.get_by_role("link", name="worse in b: 1")).to_be_visible()
    assert page.locator(".list tbody .number").all_inner_texts() == ["1", "0"]
    page.locator(".list tbody a").click()
    page.get_by_role("article", name="second: second").wait_for()
    assert page.get_by_role("article").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("where", ["#/", "#/groups", "#/groups?hardness=hard&page=0", "#/compare"])
def test_pages_fit_390_pixels(open_page: Open, index: str, where: str, scheme: str) -> None:
    page = open_page(f"{index}{where}", width=390, scheme=scheme)
    page.get_by_role("heading").first.wait_for()
    assert is_no_wider_than_the_window(page)
    if "hard" in where:
        page.locator(".list tbody a").first.click()
        page.get_by_role("article").first.wait_for()
        assert is_no_wider_than_the_window(page)
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 31)")
    screenshot(page, f"narrow-{scheme}-{where.strip('#/').replace('?', '-') or 'run'}")


def test_the_report_is_a_self_contained_first_page(open_page: Open, run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere.html"
    shutil.copy(write_report(run), alone)
    page = open_page(alone.as_uri(), width=390)
    page.get_by_role("heading", name="run", exact=True).wait_for()
    page.locator("figure svg").first.wait_for()
    assert is_no_wider_than_the_window(page)
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    heads = page.locator("th").evaluate_all(LINES)
    assert [message for message, lines in heads if lines > len(message.split())] == []
    screenshot(page, "report")


def test_all_controls_are_reachable_by_keyboard(open_page: Open, index: str) -> None:
    page = open_page(index)
    page.get_by_role("heading", name="run", exact=True).wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="to the content")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.get_by_role("status")).to_have_text("12 of 12 groups")
    page.keyboard.press("/")
    page.keyboard.type("q3?")
    expect(page.get_by_role("status")).to_have_text("1 of 12 groups")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="q3").wait_for()


def test_all_controls_have_accessible_names(open_page: Open, index: str) -> None:
    page = open_page(f"{index}#/groups")
    page.get_by_role("status").wait_for()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, a")].filter((one) => !(
        one.textContent.trim() || one.getAttribute("aria-label") || (one.labels && one.labels[0]))).length"""
    )
    assert unnamed == 0
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("navigation", name="pages").count() == 1


def test_a_growing_folder_is_read_incrementally(open_page: Open, view_runs: ModuleType, tmp_path: Path) -> None:
    run = view_runs.write_run(tmp_path / "run", steps=(1,))
    shown = View([open_result_folder(run)], tmp_path / "out", None)
    shown.update(is_live=True)
    page = open_page(f"{(tmp_path / 'out' / 'index.html').as_uri()}#/groups")
    status = page.get_by_role("status")
    expect(status).to_have_text("6 of 6 groups")
    view_runs.add_step(run, 2)
    shown.update(is_live=True)
    expect(status).to_have_text("8 of 8 groups", timeout=15_000)
    expect(page.get_by_text("● live")).to_be_visible()


def test_an_active_run_is_served(open_page: Open, view_runs: ModuleType, tmp_path: Path) -> None:
    run = view_runs.write_run(tmp_path / "run", steps=(1,))
    command = [sys.executable, "-m", "jaxrl_sql", "view", str(run), "--serve", "0", "--judge", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            page = open_page(f"{address}#/groups")
            status = page.get_by_role("status")
            expect(status).to_have_text("6 of 6 groups")
            view_runs.add_step(run, 2)
            expect(status).to_have_text("8 of 8 groups", timeout=20_000)
            page.get_by_role("link", name="Which items, q2?").click()
            assert "✓ bird" in page.get_by_role("article", name="answer 1").inner_text()
            page.goto("about:blank")  # otherwise it keeps polling, and reports that the server does not answer
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=20) == 0
