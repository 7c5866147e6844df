"""Compare prompt templates with the prompts in checkouts of the authors' code, message by message.

    python scripts/check_prompts.py CHECKOUT...                      # the package's templates
    python scripts/check_prompts.py CHECKOUT... --templates FOLDER   # those that authors_prompts.py wrote

Both are filled with the same values: those of all released rows, or of two sample questions, with and without
evidence. The exit code is 0 if all messages are equal. It is 1 with a diff of the first different ones, and 2 for a
checkout without a prompt or a missing template.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from authors_prompts import Source, Texts, fill_all, read_prompts

from jaxrl_sql.text2sql.prompts.template import PromptTemplate, read_template, template_names
from jaxrl_sql.types import InputError

_SAMPLE = {
    "schema": "CREATE TABLE dept (\n    id INTEGER\n);",
    "question": "Who?",
    "dialect": "SQLite",
    "complexity": "Simple",
}
SAMPLES = ({**_SAMPLE, "evidence": "A hint."}, {**_SAMPLE, "evidence": ""})


def pair_messages(source: Source) -> Iterator[tuple[bool, Texts, Mapping[str, str]]]:
    """Yield (whether the model thinks by itself, the authors' messages, values) of a prompt."""
    for messages, values in source.rows:
        yield False, messages, values
    for values in () if source.rows else SAMPLES:
        yield False, fill_all(source.texts, values), values
        yield True, fill_all(source.thinking, values), values


def render_messages(template: PromptTemplate, values: Mapping[str, str], *, thinks: bool) -> Texts:
    """Return the messages of a template by role."""
    every = {**values, "values": "", "instruction": "", "thinks": thinks}
    user = "".join(template.texts(every))
    texts = {"system": template.system(every), "user": user, "assistant": template.assistant(thinks=thinks)}
    return {role: text for role, text in texts.items() if text}


def check(source: Source, template: PromptTemplate) -> bool:
    """Print whether a template equals a prompt, with a diff of the first different messages."""
    count = 0
    for thinks, theirs, values in pair_messages(source):
        ours = render_messages(template, values, thinks=thinks)
        count += 1
        if ours != theirs:
            sys.stdout.write(f"{source.name}: {source.place}: differs{' for a thinking model' if thinks else ''}\n")
            lines = difflib.unified_diff(_lines(theirs), _lines(ours), "theirs", "ours", lineterm="")
            sys.stdout.writelines(f"  {line}\n" for line in lines)
            return False
    unit = "rows" if source.rows else "fillings"
    note = f" ({source.note})" if source.note else ""
    sys.stdout.write(f"{source.name}: {source.place}: equal in {count} {unit}{note}\n")
    return True


def _lines(texts: Texts) -> list[str]:
    """Return the lines of messages, each with its end, so that white space at the ends of messages shows."""
    return [f"{role}: {line!r}" for role, text in texts.items() for line in text.splitlines(keepends=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="+", metavar="CHECKOUT", help="a checkout of the authors' code")
    parser.add_argument("--templates", type=Path, metavar="FOLDER", help="the folder of the templates to compare")
    args = parser.parse_args(arguments)
    try:
        pairs = [
            (source, read_template(_template_of(source.name, args.templates)))
            for checkout in args.checkouts
            for source in read_prompts(checkout)
            if args.templates or source.name in template_names()
        ]
        equal = [check(source, template) for source, template in pairs]
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0 if all(equal) else 1


def _template_of(name: str, folder: Path | None) -> str:
    return str(folder / f"{name}.jinja") if folder else name


if __name__ == "__main__":
    sys.exit(main())
