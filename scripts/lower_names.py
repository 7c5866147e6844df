"""Copy a model's folder and let its tokenizer read the names of compact schemas in lower case.

`python scripts/lower_names.py configs/quickstart_start models/lower` makes a folder for `evaluate --model` and
`model.checkpoint`. A small model copies the tokens of a name from the schema, and `Country` there and `country` in the
question are other tokens. SQLite's names have no case, so what it then writes still runs. A capital is made small where
its word ends before a mark of `data.prompt=compact`: a bracket, a comma, `=`, or a dot inside of a name. Other words of
questions keep their capitals, but for those before a comma or a bracket.
"""

from __future__ import annotations

import argparse
import shutil
import string
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

_BEFORE_MARK = r"(?=\w*(?:[(,=)]|\.\w))"


def lower_names(tokenizer: Tokenizer) -> Tokenizer:
    """Give a tokenizer the normalizer that makes names small, before the one that it has."""
    small = [
        normalizers.Replace(Regex(f"{capital}{_BEFORE_MARK}"), capital.lower()) for capital in string.ascii_uppercase
    ]
    tokenizer.normalizer = normalizers.Sequence([*small, *filter(None, [tokenizer.normalizer])])
    return tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the copy; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a Hugging Face folder with tokenizer.json")
    parser.add_argument("out", type=Path, help="a folder that is not there yet")
    options = parser.parse_args(arguments)
    if not (options.model / "tokenizer.json").is_file():
        sys.stderr.write(f"{options.model}: no tokenizer.json there; name a Hugging Face folder\n")
        return 2
    if options.out.exists():
        sys.stderr.write(f"{options.out}: is there; name another folder\n")
        return 2
    shutil.copytree(options.model, options.out)
    lower_names(Tokenizer.from_file(str(options.model / "tokenizer.json"))).save(str(options.out / "tokenizer.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
