"""Check the project's prose: limit phrases, long sentences and vague local names in each group of files.

Prose is documentation, docstrings, comments, messages and test names. A count above its limit in `LIMITS` is an error,
which names the files with the highest counts. `--counts` prints all counts, and `--files N` the worst N files of each.
Generated questions are data: in `datagen/synth` only docstrings and comments count.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PHRASES = {
    "beside": r"\bbeside\b",
    "what-is": r"\bwhat (?:is|was|are|were|has|have|had|it|they|comes?|came|stands?|goes)\b",
    "stand": r"\bstands?\b(?!-| for| alone)",
    "tell": r"\b(?:told|tells?)\b",
    "go-on": r"\b(?:go|goes|going|went) on\b",
    "is-none": r"\b(?:is|are) none\b",
    "where-it": r"\bwhere (?:it|there|they|one)\b",
    "so-many": r"\b(?:so (?:many|long)|as many as)\b",
}
"""Phrases by name, counted per 100,000 words."""
LONG = "long sentences"
"""Sentences of more than 40 words, per mille."""
NAMES = "vague names"
"""Bound local names of `VAGUE`, per mille."""
VAGUE = {"one", "found", "words", "own", "said", "kept", "asked", "given", "made", "told"}
LIMITS = {name: 15 if name in list(PHRASES)[:5] else 30 for name in PHRASES} | {LONG: 20, NAMES: 5}
EXEMPT = {
    "scripts/check_words.py",
    "scripts/check_prose.py",
    "tests/unit/scripts/test_check_words.py",
    "tests/unit/scripts/test_check_prose.py",
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PHRASES.items()}


GROUPS = {
    "docs": ("*.md",),
    "package": ("jaxrl_sql/*.py", "sqlexec_rs/python/*.py", "sqlexec_rs/python/*.pyi"),
    "rust": ("sqlexec_rs/*.rs",),
    "tests": ("tests/*.py",),
    "scripts": ("scripts/*", "configs/*.yaml", "Makefile", ".ci/run", ".github/*.yml", "*.py"),
}
"""The file patterns of each group; a file belongs to the first that matches."""


SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Text(NamedTuple):
    """The prose of a file, text by text, and the names that it binds."""

    prose: list[str]
    names: list[str]


def python_text(source: str, is_data: bool = False) -> Text:
    """Return the prose and names of Python source; for data without the messages."""
    prose, names, strings = [], [], []
    for node in nodes_of(ast.parse(source)):
        kind = type(node)
        if kind is ast.Constant:
            if isinstance(node.value, str):
                strings.append(node)
                if " " in node.value and not is_data:
                    prose.append(node.value)
        elif kind is ast.JoinedStr:
            strings.append(node)
        elif kind is ast.Name:
            if type(node.ctx) is ast.Store:
                names.append(node.id)
        elif kind is ast.arg:
            names.append(node.arg)
        elif kind in SCOPES:
            if is_data:
                prose.append(ast.get_docstring(node) or "")
            if kind is ast.FunctionDef and node.name.startswith("test_"):
                prose.append(node.name.replace("_", " "))
    return Text([*prose, *python_comments(source, strings)], names)


def nodes_of(tree: ast.AST) -> Iterator[Any]:
    """Yield all nodes of a tree, in a third of the time of `ast.walk`."""
    left: list[Any] = [tree]
    while left:
        node = left.pop()
        yield node
        for value in vars(node).values():
            if type(value) is list:
                left += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                left.append(value)


def python_comments(source: str, strings: list[ast.expr]) -> Iterator[str]:
    """Yield the comments of Python source, those of consecutive lines as one text."""
    inside: dict[int, list[tuple[int, int]]] = {}  # by line, the bytes that are in strings
    for node in strings:
        last = node.end_lineno or node.lineno
        for line in range(node.lineno, last + 1):
            begin = node.col_offset if line == node.lineno else 0
            inside.setdefault(line, []).append((begin, node.end_col_offset or 0 if line == last else sys.maxsize))
    block: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        mark = line.find("#")
        while mark >= 0 and any(a <= len(line[:mark].encode()) < b for a, b in inside.get(number, ())):
            mark = line.find("#", mark + 1)
        is_alone = mark >= 0 and not line[:mark].strip()
        if block and not is_alone:
            yield " ".join(block)
            block = []
        if mark >= 0:
            block.append(line[mark:].lstrip("# "))
    yield " ".join(block)


def rust_text(source: str) -> Text:
    """Return the comments and names of Rust source."""
    blocks = re.findall(r"(?:^[ \t]*//[^\n]*\n?)+|//[^\n]*", source, re.MULTILINE)
    prose = [re.sub(r"^[ \t]*//[/!]?", "", block, flags=re.MULTILINE) for block in blocks]
    return Text(prose, re.findall(r"\blet (?:mut )?([a-z_]\w*)", source))


def page_text(source: str) -> Text:
    """Return the prose of a page without its code; each row of a table is a separate text."""
    source = re.sub(r"```.*?```|`[^`]*`", " ", source, flags=re.DOTALL)
    return Text(re.split(r"\n\s*\n|\n(?=[|#-])|\|", source), [])


def comment_text(source: str) -> Text:
    """Return the comments of a shell script, a Makefile or YAML."""
    return Text(re.findall(r"#+\s?(.*)", source), [])


def text_of(name: str, source: str) -> Text:
    """Return the prose of a file."""
    if name.endswith((".py", ".pyi")):
        return python_text(source, is_data="datagen/synth" in name)
    kinds: dict[str, Callable[[str], Text]] = {".rs": rust_text, ".md": page_text}
    return kinds.get(Path(name).suffix, comment_text)(source)


class Counts(NamedTuple):
    """The hits of each name in a text, and the totals for their rates."""

    hits: Counter[str]
    words: int
    sentences: int
    bound: int

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        sums = (a + b for a, b in zip(self[1:], other[1:], strict=True))
        return Counts(self.hits + other.hits, *sums)

    def rates(self) -> dict[str, float]:
        """Return the rates: per 100,000 words, per mille of sentences and of names."""
        rates = {name: 1e5 * self.hits[name] / max(self.words, 1) for name in PHRASES}
        rates[LONG] = 1e3 * self.hits[LONG] / max(self.sentences, 1)
        return rates | {NAMES: 1e3 * self.hits[NAMES] / max(self.bound, 1)}


def count(text: Text) -> Counts:
    """Count a file's text."""
    whole = "\n".join(text.prose)
    hits = Counter({name: len(pattern.findall(whole)) for name, pattern in PATTERNS.items()})
    lengths = [len(part.split()) for prose in text.prose for part in re.split(r"(?<=[.!?:])\s+", prose)]
    hits[LONG] = sum(length > 40 for length in lengths)
    hits[NAMES] = sum(name in VAGUE for name in text.names)
    return Counts(hits, sum(lengths), sum(length > 0 for length in lengths), len(text.names))


def group_of(name: str) -> str | None:
    """Return the group of a file."""
    return next((title for title, globs in GROUPS.items() if any(fnmatch(name, glob) for glob in globs)), None)


def count_files(root: Path) -> dict[str, dict[str, Counts]]:
    """Return the counts of each tracked file, by group."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True)  # noqa: S607
    files: dict[str, dict[str, Counts]] = {title: {} for title in GROUPS}
    for name in listed.stdout.split("\0"):
        group = group_of(name)
        if group is not None and name not in EXEMPT and (root / name).is_file():
            files[group][name] = count(text_of(name, (root / name).read_text(encoding="utf-8", errors="replace")))
    return files


def main() -> int:
    """Compare the counts with their limits; return 1 if one is above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to read")
    parser.add_argument("--counts", action="store_true", help="print all counts with their limits")
    parser.add_argument("--files", type=int, default=5, metavar="N", help="files to list for a count above its limit")
    arguments = parser.parse_args()
    has_failed = False
    for title, files in count_files(arguments.root).items():
        total = Counts(Counter(), 0, 0, 0)
        for counts in files.values():
            total = total.plus(counts)
        for name, rate in total.rates().items():
            limit = LIMITS[name]
            if arguments.counts:
                print(f"{title}: {name}: {rate:.1f} (limit {limit})")
            if rate > limit:
                worst = sorted(files, key=lambda file: -files[file].hits[name])[: arguments.files]
                where = ", ".join(f"{file} ({files[file].hits[name]})" for file in worst if files[file].hits[name])
                print(f"error: {title}: {name}: {rate:.1f} is above the limit of {limit}; most in {where}")
                has_failed = True
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
