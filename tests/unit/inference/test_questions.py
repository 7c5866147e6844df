"""Notes of a run on its prompts: skipped prompts, pruned prompts and damaged descriptions."""

import io
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from jaxrl_sql.inference.questions import _report_dialects, make_prompt_set
from jaxrl_sql.runtime.display import make_display
from jaxrl_sql.text2sql.prompts.prompts import PromptSet, Pruning
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.types import Example


class Characters:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))


def test_prompts_over_the_limit_are_skipped_or_pruned(tmp_path: Path) -> None:
    path = tmp_path / "d" / "d.sqlite"
    (path.parent / "database_description").mkdir(parents=True)
    (path.parent / "database_description" / "t.csv").write_text("nothing")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"CREATE TABLE t(id INTEGER PRIMARY KEY, {', '.join(f'column_{i}' for i in range(20))})"
        )
    long = Example("long", "d", str(path), "Which?", "SELECT column_3 FROM t")
    short = Example("short", "d", str(path), "?", "SELECT column_4 FROM t")

    def load_prompts(pruning: Pruning | None) -> tuple[PromptSet, list[str]]:
        stream = io.StringIO()
        with make_display("plain", 0, "title", stream, beat_s=0) as display:
            results = make_prompt_set("set", [long, short], compact_style(), Characters(), 228, display, pruning)
        title, begins, *notes = stream.getvalue().splitlines()
        assert (title, begins) == ("title", "tokenizing the prompts of set: 2 questions")
        return results, notes

    damaged = f"set: 1 description file is damaged, such as {tmp_path}/d/database_description/t.csv: no column "
    result, notes = load_prompts(None)
    assert result.examples == (short,)
    assert notes[0] == "set: skipped 1 (prompt over 228 tokens), such as long"
    lengths = r"a median of \d+ and a maximum of 2\d\d tokens"
    assert re.fullmatch(rf"set: prompts have {lengths}; the limit is data\.max_prompt_tokens=228", notes[1])
    assert notes[2].startswith(damaged)
    result, notes = load_prompts(Pruning(228, 0))
    assert result.examples == (long, short)
    assert "column_3" in result.prompts[0].text
    assert notes[0] == "set: 1 prompt is pruned to 228 tokens, such as long"


def test_note_on_dialects_names_others_only_if_there_are_others() -> None:
    lite = Example("a", "d", "d.sqlite", "?", "SELECT 1")
    on_server = replace(lite, dialect="postgresql", engine_url="postgresql://host/d")
    notes: list[str] = []
    for examples in ([lite], [on_server], [on_server, lite]):
        _report_dialects(notes.append, examples)
    assert notes == [
        "data: of 1 training questions, 1 in PostgreSQL",
        "data: of 2 training questions, 1 in PostgreSQL; the others are in SQLite's dialect",
    ]
