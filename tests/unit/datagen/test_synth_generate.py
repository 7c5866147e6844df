"""The generator is deterministic, its splits are disjoint, and its golds return rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.datagen.synth.extra_columns import add_column
from jaxrl_sql.datagen.synth.notation import SEEN_DOMAINS, UNSEEN_DOMAINS, parse_domains
from jaxrl_sql.datagen.synth.question_template import TEMPLATES
from jaxrl_sql.datagen.synth.questions import difficulty_quota
from jaxrl_sql.datagen.synth.spec import DIFFICULTIES, SPLITS
from jaxrl_sql.text2sql.benchmarks import load_folder
from jaxrl_sql.text2sql.evals.hardness import spider_level
from jaxrl_sql.types import InputError

SPEC = SynthSpec(seed=3, train_dbs=10, dev_dbs=3, unseen_dbs=3, train_questions=40, dev_questions=20, vocab_size=700)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synth") / "data"
    report = generate(out, SPEC)
    assert report.questions == {"train": 400, "dev": 60, "dev_unseen": 60}
    return out


def questions(out: Path, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / split / "questions.jsonl").read_text().splitlines()]


def connect(out: Path, question: dict[str, str]) -> sqlite3.Connection:
    name = question["db_id"]
    path = out / question["split"] / "databases" / name / f"{name}.sqlite"
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True)


def dumps(out: Path) -> dict[str, str]:
    result = {}
    for path in sorted(out.glob("*/databases/*/*.sqlite")):
        connection = sqlite3.connect(path)
        result[str(path.relative_to(out))] = "\n".join(connection.iterdump())
        connection.close()
    return result


@pytest.mark.slow
def test_same_seed_generates_the_same_data_in_another_process(tmp_path: Path) -> None:
    """The digests of `test_generated_bytes_of_a_spec_do_not_change` come from many processes."""
    here, there = tmp_path / "here", tmp_path / "there"
    generate(here, SynthSpec(3, 2, 1, 1, 8, 6, vocab_size=400))
    numbers = {"seed": 3, "train-dbs": 2, "dev-dbs": 1, "unseen-dbs": 1, "train-questions": 8, "dev-questions": 6}
    options = [part for name, value in numbers.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "jaxrl_sql", "data", "synth", "--out", str(there), *options, "--vocab-size", "400"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for split in SPLITS:
        name = Path(split) / "questions.jsonl"
        assert (there / name).read_bytes() == (here / name).read_bytes()
    assert dumps(there) == dumps(here)
    assert (there / "tokenizer/tokenizer.json").read_bytes() == (here / "tokenizer/tokenizer.json").read_bytes()


def test_generated_bytes_of_a_spec_do_not_change(generated: Path) -> None:
    """Check digests without the difficulty label: runs on generated sets must stay comparable."""
    files = {}
    for split in SPLITS:
        lines = [{**line, "difficulty": ""} for line in questions(generated, split)]
        files[split] = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode()
    files["rows"] = "\n".join(f"{name}\n{text}" for name, text in dumps(generated).items()).encode()
    assert {name: hashlib.sha256(text).hexdigest()[:16] for name, text in files.items()} == {
        "train": "28b1d370de3b43f0",
        "dev": "042adfe0d75882e5",
        "dev_unseen": "0a33c3a265841152",
        "rows": "ecf9c0853967d7e6",
    }
    spec = json.loads((generated / "synth.json").read_text())["spec"]
    assert list(spec) == [field.name for field in dataclasses.fields(SynthSpec)]


def test_another_seed_generates_other_questions(generated: Path, tmp_path: Path) -> None:
    generate(tmp_path, SynthSpec(seed=4, train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=40, dev_questions=20))
    first = {line["question"] for line in questions(generated, "train")[:40]}
    assert len(first & {line["question"] for line in questions(tmp_path, "train")}) < 5


def test_finished_folder_is_unchanged_and_another_spec_is_refused(tmp_path: Path) -> None:
    small = SynthSpec(train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=8, dev_questions=8, vocab_size=400)
    assert not generate(tmp_path, small).was_present
    stamp = (tmp_path / "train/questions.jsonl").stat().st_mtime_ns
    report = generate(tmp_path, small)
    assert report.was_present
    assert report.questions == {"train": 8, "dev": 8, "dev_unseen": 8}
    assert (tmp_path / "train/questions.jsonl").stat().st_mtime_ns == stamp
    before = dumps(tmp_path)
    with pytest.raises(InputError, match=f"synth: {tmp_path} holds other data: seed=0, not 1; choose another folder"):
        generate(tmp_path, dataclasses.replace(small, seed=1))
    with pytest.raises(
        InputError, match=r"train_questions=8, not 9; extra_columns_share=0\.0, not 0\.5; rows=0, not 9;"
    ):
        generate(tmp_path, dataclasses.replace(small, train_questions=9, extra_columns_share=0.5, rows=9))
    assert dumps(tmp_path) == before
    record = (tmp_path / "synth.json").read_text()
    (tmp_path / "synth.json").write_text(record.replace('"version": ', '"version": 9'))
    with pytest.raises(InputError, match=r"holds other data: version=9\d, not \d;"):
        generate(tmp_path, small)
    (tmp_path / "synth.json").write_text("{}")
    with pytest.raises(InputError, match=r"its synth.json is invalid"):
        generate(tmp_path, small)
    assert dumps(tmp_path) == before


def test_interrupted_generation_leaves_no_files(tmp_path: Path) -> None:
    out = tmp_path / "data"
    code = "import sys; from pathlib import Path; from jaxrl_sql.datagen.synth import SynthSpec, generate; "
    code += "generate(Path(sys.argv[1]), SynthSpec())"
    process = subprocess.Popen([sys.executable, "-c", code, str(out)])
    while process.poll() is None and not list(tmp_path.glob("*/train/databases/*")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not out.exists()
    small = SynthSpec(train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=8, dev_questions=8, vocab_size=400)
    assert not generate(out, small).was_present
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert len(dumps(out)) == 3


def test_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not empty"):
        generate(tmp_path, SynthSpec())
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["train_dbs", "dev_questions", "vocab_size"])
def test_unusable_numbers_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=name):
        generate(tmp_path, SynthSpec(**{name: 0}))


def test_splits_share_no_database_and_unseen_domains_are_unseen(generated: Path) -> None:
    ids = {split: {line["db_id"] for line in questions(generated, split)} for split in SPLITS}
    assert {split: len(result) for split, result in ids.items()} == {"train": 10, "dev": 3, "dev_unseen": 3}
    assert not ids["train"] & ids["dev"]
    assert not (ids["train"] | ids["dev"]) & ids["dev_unseen"]
    domains = {split: {re.sub(r"_(train|dev|dev_unseen)_\d+$", "", name) for name in ids[split]} for split in SPLITS}
    assert not domains["dev_unseen"] & (domains["train"] | domains["dev"])
    schemas = {name: text.split("INSERT")[0] for name, text in dumps(generated).items()}
    assert len(set(schemas.values())) == len(schemas)


def test_domains_tables_and_templates_are_numerous() -> None:
    assert len(SEEN_DOMAINS) >= 16
    assert len(UNSEEN_DOMAINS) >= 5
    assert not {domain.name for domain in SEEN_DOMAINS} & {domain.name for domain in UNSEEN_DOMAINS}
    for domain in SEEN_DOMAINS + UNSEEN_DOMAINS:
        assert 2 <= len(domain.tables) <= 4, domain.name
        earlier: set[str] = set()
        for table in domain.tables:
            assert set(table.parents) <= earlier, (domain.name, table.names)
            earlier.add(table.names[0])
    assert all(len(TEMPLATES[grade]) >= 8 for grade in DIFFICULTIES)


def test_every_gold_returns_rows(generated: Path) -> None:
    for split in SPLITS:
        for line in questions(generated, split):
            connection = connect(generated, line)
            rows = connection.execute(line["sql"]).fetchall()
            connection.close()
            assert rows, line
            assert not (len(rows) == 1 and all(value in (None, 0) for value in rows[0])), line


def test_every_split_has_every_grade_and_no_repeated_question(generated: Path) -> None:
    for split in SPLITS:
        lines = questions(generated, split)
        assert {line["difficulty"] for line in lines} == set(DIFFICULTIES) - {"advanced"}
        assert [line["difficulty"] for line in lines] == [spider_level(line["sql"]) for line in lines]
        assert len({(line["db_id"], line["question"]) for line in lines}) == len(lines)
        assert len({line["id"] for line in lines}) == len(lines)
        keys = {"id", "db_id", "question", "evidence", "sql", "split", "difficulty"}
        keys |= {"reasoning"} if split == "train" else set()
        assert all(set(line) == keys for line in lines)
        assert all(line["reasoning"] for line in lines if split == "train")


def test_literals_of_the_sql_occur_in_the_question(generated: Path) -> None:
    seen = 0
    for line in questions(generated, "train"):
        for value in re.findall(r"'([^']*)'", line["sql"]):
            assert value.strip("%") in line["question"], line
            seen += 1
        for value in re.findall(r"(?:[<>=] |BETWEEN |AND )(-?\d+\.?\d*)(?![-\d.])", line["sql"]):
            flag = re.search(rf"(?:is|has)_\w+ = {value}\b", line["sql"])
            assert flag or value in line["question"], line
            seen += 1
    assert seen > 200


def test_limited_gold_has_no_tie_at_its_limit(generated: Path) -> None:
    seen = 0
    for line in questions(generated, "train"):
        result = re.fullmatch(r"SELECT \w+ (FROM .* ORDER BY (\w+) (?:DESC|ASC) LIMIT) (\d+)", line["sql"])
        if result:
            connection = connect(generated, line)
            keys = connection.execute(f"SELECT {result[2]} {result[1]} {int(result[3]) + 1}").fetchall()
            connection.close()
            assert len(set(keys)) == int(result[3]) + 1, line
            assert (None,) not in keys, line
            seen += 1
    assert seen > 10


def test_databases_have_keys_types_nulls_and_hundreds_of_rows(generated: Path) -> None:
    nulls = 0
    for path in sorted(generated.glob("*/databases/*/*.sqlite")):
        connection = sqlite3.connect(path)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = sum(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables)
        assert 600 <= rows <= 4000, (path.name, rows)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert any(connection.execute(f"PRAGMA foreign_key_list({table})").fetchall() for table in tables)
        for table in tables:
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            assert [column[5] for column in columns].count(1) == 1, table
            assert len({column[1] for column in columns}) == len(columns)
            tests = " + ".join(f"SUM({column[1]} IS NULL)" for column in columns)
            nulls += connection.execute(f"SELECT {tests} FROM {table}").fetchone()[0]
        connection.close()
    assert nulls > 100


def test_only_the_training_split_is_decorated(tmp_path: Path) -> None:
    sizes = {"train_dbs": 4, "dev_dbs": 1, "unseen_dbs": 1, "train_questions": 4, "dev_questions": 4}
    plain = tmp_path / "plain"
    decorated = tmp_path / "decorated"
    generate(plain, SynthSpec(**sizes, decorated_share=0.0))
    generate(decorated, SynthSpec(**sizes, decorated_share=1.0))
    plain_dumps, decorated_dumps = dumps(plain), dumps(decorated)
    assert all((plain_dumps[name] == decorated_dumps[name]) == (not name.startswith("train/")) for name in plain_dumps)


def test_demonstrations_occur_in_training_only_and_change_nothing_else(generated: Path, tmp_path: Path) -> None:
    out = tmp_path / "demonstrated"
    generate(out, dataclasses.replace(SPEC, extra_columns_share=0.6))
    for split in SPLITS:
        plain, demonstrated = questions(generated, split), questions(out, split)
        demonstrations = [line.pop("demonstration") for line in demonstrated if "demonstration" in line]
        for line in (*plain, *demonstrated):  # the reasoning belongs to the demonstrated query
            line.pop("reasoning", None)
        assert demonstrated == plain
        assert bool(demonstrations) == (split == "train")
    train = questions(out, "train")
    eligible = [line for line in train if add_column(line["sql"])]
    share = sum("demonstration" in line for line in train) / len(eligible)
    assert 0.5 < share < 0.7
    for line in train:
        if "demonstration" in line:
            connection = connect(out, line)
            results = [connection.execute(line[key]).fetchall() for key in ("sql", "demonstration")]
            connection.close()
            assert sorted(map(repr, results[0])) == sorted(repr(row[:-1]) for row in results[1]), line


def test_unknown_kind_of_column_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        parse_domains("== shop\nitem 10\n  name @title; colour integer 1 2\n")


SMALL = {"seed": 5, "train_dbs": 3, "dev_dbs": 1, "unseen_dbs": 1, "train_questions": 24, "dev_questions": 8}


def test_grades_have_the_requested_shares(tmp_path: Path) -> None:
    result = generate(tmp_path, SynthSpec(**SMALL, splits=("train",), easy=0, medium=1, hard=0, extra=3))
    assert result.grades == {"medium": 18, "extra": 54}
    assert len(questions(tmp_path, "train")) == 72


@pytest.mark.parametrize(
    ("count", "mix", "quota"),
    [
        (150, SynthSpec().mix, [53, 45, 30, 22, None]),
        (20, SynthSpec().mix, [7, 6, 4, 3, None]),
        (3, SynthSpec().mix, [3, 0, 0, 0, None]),
        (10, SynthSpec(hard=50).mix, [3, 2, 4, 1, None]),
        (10, SynthSpec(easy=0).mix, [None, 5, 3, 2, None]),
        (4, SynthSpec(easy=1, medium=997, hard=1, extra=1).mix, [1, 1, 1, 1, None]),
        (10, SynthSpec(advanced=25).mix, [3, 2, 2, 1, 2]),
        (1, SynthSpec(easy=0, extra=0).mix, [None, 1, 0, None, None]),
    ],
)
def test_quotas_add_up(count: int, mix: tuple[float, ...], quota: list[int | None]) -> None:
    result = difficulty_quota(count, mix)
    assert [result.get(grade) for grade in DIFFICULTIES] == quota
    assert sum(result.values()) == count


def test_splits_that_are_not_requested_are_not_written(tmp_path: Path) -> None:
    part, whole = tmp_path / "part", tmp_path / "whole"
    report = generate(part, SynthSpec(**SMALL, splits=("dev_unseen",)))
    assert {path.name for path in part.iterdir()} == {"dev_unseen", "synth.json"}
    assert report.questions == {"dev_unseen": 8}
    assert generate(part, SynthSpec(**SMALL, splits=("dev_unseen",))).was_present
    generate(whole, SynthSpec(**SMALL))
    assert questions(whole, "dev_unseen") == questions(part, "dev_unseen")


@pytest.mark.parametrize(("rows", "low", "high"), [(20, 10, 40), (3000, 1200, 6000)])
def test_tables_have_the_requested_number_of_rows(tmp_path: Path, rows: int, low: int, high: int) -> None:
    report = generate(tmp_path, SynthSpec(**SMALL | {"train_dbs": 4}, splits=("train",), rows=rows))
    assert report.questions["train"] >= 90
    counts = []
    for path in tmp_path.glob("train/databases/*/*.sqlite"):
        connection = sqlite3.connect(path)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts += [connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables]
        connection.close()
    assert low <= sum(counts) / len(counts) <= high, counts


def test_mysql_share_changes_only_the_dialect(tmp_path: Path) -> None:
    plain, mixed = tmp_path / "plain", tmp_path / "mixed"
    generate(plain, SynthSpec(**SMALL, splits=("train",)))
    generate(mixed, SynthSpec(**SMALL, splits=("train",), mysql_share=0.5))
    examples = load_folder(mixed / "train").examples
    lines = questions(mixed, "train")
    dialects = [line.pop("dialect") for line in lines if "dialect" in line]
    assert set(dialects) == {"mysql"}
    assert 20 <= len(dialects) <= 52
    assert lines == questions(plain, "train")
    assert sum(example.dialect == "mysql" for example in examples) == len(dialects)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"splits": ("train", "test")}, "splits"),
        ({"splits": ()}, "splits"),
        ({"rows": 3}, "rows"),
        ({"easy": -1.0}, "shares"),
        ({"easy": 0.0, "medium": 0.0, "hard": 0.0, "extra": 0.0}, "shares"),
        ({"mysql_share": 1.5}, "mysql_share"),
        ({"style": "poems"}, "style 'poems' must be one of templates, grammar"),
    ],
)
def test_invalid_spec_values_are_named(tmp_path: Path, values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(tmp_path, SynthSpec(**{**SMALL, **values}))
