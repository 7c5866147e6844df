"""Build the documentation site: `make docs` writes build/docs/site, which opens from disk.

`stage` writes the pages: docs/, README, the API from docstrings, the executed notebook, screenshots of its run, and
llms.txt. Zensical then builds the site and treats warnings as errors. `--quick` skips the notebook and the
screenshots; `--serve` serves the site on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

import jaxrl_sql

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "docs"
NOTEBOOK = "docs/notebooks/quickstart.ipynb"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
STYLE = ".md-typeset img { border: 1px solid var(--md-default-fg-color--lightest); }\n"


def main() -> int:
    """Build the site, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="do not run the notebook or take screenshots")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the site on http://127.0.0.1:PORT/")
    args = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    stage(OUT / "pages")
    run_notebook(OUT / "pages", is_run=not args.quick)
    take_pictures(OUT / "pages", None if args.quick else OUT / "work" / "runs" / "notebook")
    _write(OUT / "pages" / "llms.txt", llms(OUT / "pages"))
    shutil.copyfile(ROOT / "docs" / "zensical.toml", OUT / "zensical.toml")
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if code := subprocess.run(build, cwd=OUT, check=False).returncode:
        return code
    for page in (OUT / "pages").rglob("*.md"):  # what llms.txt points to
        shutil.copyfile(page, OUT / "site" / page.relative_to(OUT / "pages"))
    print(OUT / "site" / "index.html")
    if args.serve is not None:
        handler = partial(http.server.SimpleHTTPRequestHandler, directory=OUT / "site")
        with contextlib.suppress(KeyboardInterrupt):
            http.server.ThreadingHTTPServer(("127.0.0.1", args.serve), handler).serve_forever()
    return 0


def stage(pages: Path) -> None:
    """Write the pages that need no run, and llms.txt, to a folder."""
    staged = places()
    for name, page in staged.items():
        if name.endswith(".md") and not page.startswith("api/"):
            text = (ROOT / name).read_text(encoding="utf-8")
            _write(pages / page, rewrite_links(text, name, page, staged))
    for path in (*(ROOT / "docs").glob("*.png"), ROOT / "docs" / "iframe-worker.js"):
        shutil.copyfile(path, pages / path.name)
    _write(pages / "api" / "jaxrl_sql.md", api_page())
    _write(pages / "api" / "sqlexec_rs.md", executor_page())
    _write(pages / "extra.css", STYLE)


def places() -> dict[str, str]:
    """Return the site's path of each repository file that is a page or a picture."""
    docs = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".png")]
    result = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in docs}
    result |= {f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "CHANGELOG")}
    result |= {"README.md": "index.md", "sqlexec_rs/README.md": "api/sqlexec_rs.md"}
    return result | {NOTEBOOK: "notebooks/quickstart.md"}


def rewrite_links(text: str, source: str, page: str, staged: Mapping[str, str]) -> str:
    """Return a page with links rewritten to the site's paths; a link to a missing file becomes its text."""
    folder_of_page = page.rpartition("/")[0]

    def link(result: re.Match[str]) -> str:
        image, text, target = result.groups()
        path, _, anchor = target.partition("#")
        if "://" in path or not path:
            return result[0]
        target_page = staged.get(normpath(f"{source.rpartition('/')[0] or '.'}/{path}"), "")
        if not target_page:
            return text
        return f"{image}[{text}]({relpath(target_page, folder_of_page or '.')}{'#' if anchor else ''}{anchor})"

    out, end = [], 0
    for block in FENCED.finditer(text):
        out += [LINK.sub(link, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*out, LINK.sub(link, text[end:])])


def api_page() -> str:
    """Return the page of the public names of `jaxrl_sql`, for mkdocstrings."""
    modules = jaxrl_sql._MODULES  # noqa: SLF001 - where each name is
    names = sorted(jaxrl_sql.__all__, key=lambda name: (name in modules, name.lower()))
    targets = {name: f"jaxrl_sql.{modules.get(name, 'api')}.{name}" for name in names}
    targets["Executor"] = "sqlexec_rs._native.Executor"  # mkdocstrings does not follow the import
    items = "\n\n".join(f"::: {target}" for target in targets.values())
    intro = "`import jaxrl_sql as jx`: each name is loaded at its first use."
    return f"# Python: jaxrl_sql\n\n{intro}\n\n{items}\n"


def executor_page() -> str:
    """Return the page of the public names of `sqlexec_rs`, for mkdocstrings."""
    names = import_module("sqlexec_rs").__all__
    home = {"as_completed": "waiting"}
    items = "\n\n".join(f"::: sqlexec_rs.{home.get(name, '_native')}.{name}" for name in names)
    return f"# Python: sqlexec_rs\n\n[Reference](../reference/executor.md): examples, limits, statuses.\n\n{items}\n"


def run_notebook(pages: Path, *, is_run: bool) -> None:
    """Write the notebook as a page, with its output if it is run."""
    import nbformat  # noqa: PLC0415 - the other parts of this file need none of it
    from nbconvert import MarkdownExporter  # noqa: PLC0415
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor, ExecutePreprocessor  # noqa: PLC0415

    notebook = nbformat.read(ROOT / NOTEBOOK, as_version=4)
    if is_run:
        work = OUT / "work"
        work.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # an installed libtpu prints warnings into the output
        ExecutePreprocessor(timeout=600).preprocess(notebook, {"metadata": {"path": str(work)}})
        notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    folder = pages / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    body, resources = MarkdownExporter().from_notebook_node(notebook)
    for name, data in resources["outputs"].items():
        (folder / name).write_bytes(data)
    _write(folder / "quickstart.md", body)
    shutil.copyfile(ROOT / NOTEBOOK, folder / "quickstart.ipynb")


def take_pictures(pages: Path, run: Path | None) -> None:
    """Write the page about `jaxrl-sql view`, with screenshots of a run's pages."""
    heading = "# Look at answers\n\n`jaxrl-sql view RUN` writes a folder of pages: [how](howto/read_answers.md).\n"
    if run is None:
        _write(pages / "pictures.md", heading)
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the other parts of this file need none of it

    view = [sys.executable, "-m", "jaxrl_sql", "view", str(run)]
    subprocess.run(view, check=True, stdout=subprocess.DEVNULL, cwd=OUT / "work")  # where its paths lead from
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    (pages / "pictures").mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 800})
        index = (run / "view" / "index.html").as_uri()
        page.goto(index)
        page.locator("figure svg").first.wait_for()
        page.screenshot(path=str(pages / "pictures" / "run.png"))
        page.goto(f"{index}#/groups?phase=grpo&status=ok")
        page.locator(".list tbody a").first.wait_for()
        page.screenshot(path=str(pages / "pictures" / "answers.png"))
        page.locator(".list tbody a").first.click()
        page.get_by_role("article").first.wait_for()
        page.screenshot(path=str(pages / "pictures" / "group.png"))
        browser.close()
    caption = "The notebook's run, as it was when this site was built."
    images = (("run", "The run"), ("answers", "Its answers"), ("group", "A group of answers"))
    body = "\n\n".join(f"## {title}\n\n![{title}](pictures/{name}.png)" for name, title in images)
    _write(pages / "pictures.md", f"{heading}\n{caption}\n\n{body}\n")


def llms(pages: Path) -> str:
    """Return llms.txt: title and first sentence of every page in the navigation."""
    project = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}", ""]

    def add_lines(entries: list[dict[str, Any]]) -> None:
        for title, target_page in (pair for entry in entries for pair in entry.items()):
            if isinstance(target_page, list):
                lines.extend(["", f"## {title}", ""])
                add_lines(target_page)
            else:
                lines.append(
                    f"- [{title}]({target_page}): {first_sentence((pages / target_page).read_text(encoding='utf-8'))}"
                )

    add_lines(project["nav"])
    return "\n".join(lines) + "\n"


def first_sentence(text: str) -> str:
    """Return a page's first sentence of prose as plain text on one line."""
    blocks = (block.strip() for block in FENCED.sub("", text).split("\n\n"))
    prose = (block for block in blocks if block and block[0] not in "#|<!:-")
    sentence = LINK.sub(r"\2", " ".join(next(prose, "").split()))
    return re.split(r"(?<=\.)\s", sentence)[0].rstrip(":")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
