"""Copy a model's folder and let its tokenizer read the names of compact schemas in lower case; or a set of questions.

`python scripts/lower_names.py configs/quickstart_start models/lower` makes a folder for `evaluate --model` and
`model.checkpoint`. A small model copies the tokens of a name from the schema, and `Country` there and `country` in the
question are other tokens. SQLite's names have no case, so what it then writes still runs. A capital is made small where
its word ends before a mark of `data.prompt=compact`: a bracket, a comma, `=`, or a dot inside of a name. Other words of
questions keep their capitals, but for those before a comma or a bracket.

Given a generated set (`data.dir`), it copies that and writes the names of tables and columns in its golds small, as
such a model reads them; databases are links. What is taught then copies what is read.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import string
import sys
from collections.abc import Container, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

from jaxrl_sql.data.benchmarks import load_folder
from jaxrl_sql.data.schema import read_schema

_TEXT_OR_NAME = re.compile(r"'[^']*'|\"[^\"]*\"|\w+")
_BEFORE_MARK = r"(?=\w*(?:[(,=)]|\.\w))"


def lower_names(tokenizer: Tokenizer) -> Tokenizer:
    """Give a tokenizer the normalizer that makes names small, before the one that it has."""
    small = [
        normalizers.Replace(Regex(f"{capital}{_BEFORE_MARK}"), capital.lower()) for capital in string.ascii_uppercase
    ]
    tokenizer.normalizer = normalizers.Sequence([*small, *filter(None, [tokenizer.normalizer])])
    return tokenizer


def lower_golds(source: Path, out: Path) -> None:
    """Copy a set's splits with links to their databases, and golds and demonstrations with their names small."""
    for path in sorted(source.iterdir()):
        if not (path / "questions.jsonl").is_file():
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, out / path.name)
            continue
        split = out / path.name
        split.mkdir()
        (split / "databases").symlink_to((path / "databases").resolve())
        with (split / "questions.jsonl").open("w", encoding="utf-8") as file:
            for example, line in zip(load_folder(path).examples, read_lines(path), strict=True):
                names = {
                    word.lower()
                    for table in read_schema(example.db_path).tables
                    for word in (table.name, *(column.name for column in table.columns))
                }
                small = {key: lower_sql(line[key], names) for key in ("sql", "demonstration") if line.get(key)}
                file.write(json.dumps({**line, **small}, ensure_ascii=False) + "\n")


def read_lines(split: Path) -> list[dict[str, str]]:
    """Return the lines of a split."""
    return [json.loads(line) for line in (split / "questions.jsonl").read_text(encoding="utf-8").splitlines()]


def lower_sql(sql: str, names: Container[str]) -> str:
    """Return a query with those names in lower case, whatever it quotes as text left alone."""
    return _TEXT_OR_NAME.sub(lambda found: found[0].lower() if found[0].strip('"').lower() in names else found[0], sql)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the copy; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a Hugging Face folder with tokenizer.json, or a generated set")
    parser.add_argument("out", type=Path, help="a folder that is not there yet")
    options = parser.parse_args(arguments)
    is_set = any(options.model.glob("*/questions.jsonl"))
    if not (is_set or (options.model / "tokenizer.json").is_file()):
        sys.stderr.write(f"{options.model}: no tokenizer.json there; name a Hugging Face folder, or a generated set\n")
        return 2
    if options.out.exists():
        sys.stderr.write(f"{options.out}: is there; name another folder\n")
        return 2
    if is_set:
        options.out.mkdir(parents=True)
        lower_golds(options.model, options.out)
        return 0
    shutil.copytree(options.model, options.out)
    lower_names(Tokenizer.from_file(str(options.model / "tokenizer.json"))).save(str(options.out / "tokenizer.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
