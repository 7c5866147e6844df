"""Compare this project's prompt templates with the prompts in a checkout of their authors' code.

    python scripts/check_prompts.py --reference FOLDER arctic

Candidates are the strings of Python files and the text files, each alone and all of a file together. The candidate with
the most similar structure is compared. The structure is the order of the first headings, placeholders, tags, fences and
answer prefix. Roles are not compared, since code writes them in many ways. Every difference is printed. The exit code
is 1 if a structure differs or no prompt is found, and 0 if only sentences differ.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl_sql.text2sql.prompts.template import read_template
from jaxrl_sql.types import InputError

TEXTS = (".jinja", ".j2", ".txt", ".md", ".yaml", ".yml", ".prompt")
PLACEHOLDERS = {
    "schema": ("schema", "db_details", "database_schema", "database schema", "ddl", "db_schema", "table_names"),
    "question": ("question", "nl_question", "evidence + question", "user_question"),
    "evidence": ("evidence", "external_knowledge", "knowledge", "context", "hint"),
    "dialect": ("dialect", "db_engine", "engine", "database_engine"),
}
_PLACEHOLDER_OF = {name: f"{{{placeholder}}}" for placeholder, names in PLACEHOLDERS.items() for name in names}
_HEADINGS = (
    "task overview|database engine|database schema|external knowledge|question|evidence|instructions|"
    "output format|format|example format"
)
_ITEM = re.compile(
    rf"(?P<tag></?(?:think|reasoning|answer|sql|observation|solution)>)|(?P<fence>```sql)|(?P<dialect>\bSQLite\b)"
    rf"|\{{+\s*(?P<place>[\w +]+?)\s*\}}+|^(?P<heading>{_HEADINGS}):|(?P<begun>Let me solve this step by step\.)",
    re.IGNORECASE | re.MULTILINE,
)
_MIN_ITEMS = 4  # items of structure that make a text a prompt


def structure(text: str) -> list[str]:
    """Return the parts of a prompt in the order of their first occurrence."""
    result: dict[str, None] = {}
    for match in _ITEM.finditer(text):
        output = match[0].lower()
        if match["dialect"]:
            output = "{dialect}"
        elif match["place"]:
            output = _PLACEHOLDER_OF.get(match["place"].lower(), "")
        elif match["heading"]:
            output = f"{match['heading'].lower()}:"
        result.update({output: None} if output else {})
    return list(result)


def template_text(name: str) -> str:
    """Return the text of a template with its placeholders written as `{name}`."""
    template = read_template(name)
    output = {name: f"{{{name}}}" for name in ("schema", "question", "evidence", "dialect")}
    user = "".join(template.texts({**output, "values": "", "instruction": "", "thinks": False}))
    return "\n".join(filter(None, (template.system(thinks=False), user, template.assistant(thinks=False))))


def references(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of each candidate for a prompt below a folder."""
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        if path.suffix in TEXTS:
            yield str(path), path.read_text(encoding="utf-8", errors="replace")
        elif path.suffix == ".py":
            strings = list(_strings(path.read_text(encoding="utf-8", errors="replace")))
            yield from ((f"{path}:{line}", text) for line, text in strings)
            yield str(path), "\n".join(text for _, text in strings if structure(text))


def _strings(code: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the strings of Python code in order, an f-string with its names in braces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their strings' backslashes
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            return
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    result = list[tuple[int, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
            result.append((node.lineno, "".join(parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            result.append((node.lineno, node.value))
    yield from sorted(result)


def differences(template: Sequence[str], reference: Sequence[str]) -> list[str]:
    """Return the differences of two structures, one per line; evidence within the question is not a difference."""
    if "{evidence}" not in reference:
        template = [item for item in template if item != "{evidence}"]
    lines = [f"only theirs: {item}" for item in reference if item not in template]
    lines += [f"only ours: {item}" for item in template if item not in reference]
    common, order = [item for item in template if item in reference], [item for item in reference if item in template]
    return lines + ([f"order: ours {' '.join(common)}; theirs {' '.join(order)}"] if common != order else [])


def check(name: str, folder: Path) -> bool:
    """Print a template's differences from the nearest prompt below a folder; return whether the structures match."""
    text = template_text(name)
    template = structure(text)
    candidates = [reference for reference in references(folder) if len(structure(reference[1])) >= _MIN_ITEMS]
    if not candidates:
        sys.stdout.write(f"{name}: no prompt found in {folder}\n")
        return False
    location, their_text = max(
        candidates, key=lambda item: difflib.SequenceMatcher(None, template, structure(item[1])).ratio()
    )
    lines = differences(template, structure(their_text))
    sys.stdout.write(f"{name}: {location}: {'the structure differs' if lines else 'one structure'}\n")
    sys.stdout.writelines(f"  {line}\n" for line in lines)
    pairs = difflib.unified_diff(their_text.strip().splitlines(), text.splitlines(), "theirs", "ours", lineterm="")
    sys.stdout.writelines(f"  {line}\n" for line in pairs)
    return not lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and compare; 0 for equal structures, 1 for different ones, 2 for invalid input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--reference", type=Path, required=True, metavar="FOLDER", help="a checkout of the authors' code"
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="templates of this project, or files")
    args = parser.parse_args(arguments)
    if not args.reference.is_dir():
        sys.stderr.write(f"--reference {args.reference} is not a folder\n")
        return 2
    try:
        same = [check(name, args.reference) for name in args.names]
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
