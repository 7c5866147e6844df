"""Split Spider's training databases in three parts, for gemma_spider.sh: `scripts/gemma_spider.py [FORM] DATA OUT`.

`python scripts/gemma_spider.py joins OUT` adds the split mixed_train and the list mixed.ids to OUT. The split has
spider_train and generated questions, mostly joins, about the supervised phase's databases.

OUT has links to DATA's splits, the split `choose` and the lists sft.ids, grpo.ids and grpo-joins.ids. A hash of the
seed and the name assigns the 139 databases of spider_train: 29 to GRPO, 10 to the selection of checkpoints and learning
rates, the others to the supervised phase. spider_dev selects no learning rate and no checkpoint; it did select the form
of columns below. grpo-joins.ids has GRPO's questions whose golds join tables, and half as many of the others, also by a
hash.

`demonstration` is the gold in one SQL style: names spelt as in the schema, single spaces, keywords in capitals.
Spider's golds differ in style (`t1.city_id  =  t2.host_city` for City_ID and Host_City), which a model that copies
names from the schema cannot learn. Golds for scoring are unchanged. If the new style changes the result, the
demonstration is the original gold. FORM selects how demonstrations qualify columns:

- `aliases`: as in the gold.
- `tables`: with tables' names instead of aliases.
- `columns` (the default): without a table if only one of the query's tables has the column, since a small model assigns
  columns to the wrong joined table. A join's condition has tables' names, the joined table's last.
- `full`: always with the table's name, so that each column names its table.

docs/tutorials/gemma_spider.md has the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Literal, get_args

from sqlglot import exp

from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.text2sql.env.parse import none_if_it_fails, parse_query
from jaxrl_sql.text2sql.schema.read import Schema, read_schema
from sqlexec_rs import Executor, Limits

SEED, GRPO, CHOOSE = 0, 29 / 139, 10 / 139
GENERATED = 250
"""Number of generated candidate questions per database of the supervised phase."""
ADDED = {"joins": 8, "join": 18, "subquery": 3, "one": 1}
"""Maximum number of added questions by source: more than two tables, two, a subquery, or one."""


Form = Literal["aliases", "tables", "columns", "full"]
"""The qualification of columns in demonstrations; see the module's docstring."""


def assign_databases(names: list[str]) -> dict[str, set[str]]:
    """Return the databases of each part."""
    dealt = sorted(names, key=_hash)
    grpo, choose = (max(round(share * len(names)), 1) for share in (GRPO, CHOOSE))
    return {"grpo": set(dealt[:grpo]), "choose": set(dealt[grpo : grpo + choose]), "sft": set(dealt[grpo + choose :])}


def respell(sql: str, schema: Schema, form: Form) -> str | None:
    """Return a query with the schema's spelling of names and texts in single quotes; None if it does not parse."""
    return _respell(
        sql, form, {t.name.lower(): {c.name.lower(): c.name for c in t.columns} for t in schema.tables}, schema
    )


@none_if_it_fails
def _respell(sql: str, form: Form, columns: dict[str, dict[str, str]], schema: Schema) -> str:
    tables = {table.name.lower(): table.name for table in schema.tables}
    anywhere = {low: name for of in columns.values() for low, name in of.items()}
    tree = parse_query(sql)
    if tree is None:
        raise ValueError("no query")
    read = {table.alias_or_name.lower(): table.name.lower() for table in tree.find_all(exp.Table)}
    for table in tree.find_all(exp.Table):
        table.this.set("this", tables.get(table.name.lower(), table.name))
    for column in tree.find_all(exp.Column):
        low, owner = column.name.lower(), read.get(column.table.lower(), "")
        if column.this.quoted and low not in anywhere:
            column.replace(exp.Literal.string(column.name))  # SQLite reads an unknown quoted name as a text
            continue
        places = [columns.get(name, {}) for name in ([owner] if owner else read.values())]
        column.this.set("this", next((of[low] for of in places if low in of), anywhere.get(low, column.name)))
    for name in tree.find_all(exp.Identifier):
        if re.fullmatch(r"[tT]\d+", name.this) and name.this.lower() in read:
            name.set("this", name.this.upper())
    if form != "aliases":
        name_tables(tree, form, columns)
    return tree.sql(dialect="sqlite")


def name_tables(tree: exp.Expression, form: Form, columns: dict[str, dict[str, str]]) -> None:
    """Qualify columns by `form`, which is not "aliases"; a table joined with itself retains its aliases.

    `columns` has each table's columns by lower-case name.
    """
    selects = list(tree.find_all(exp.Select))
    local = {
        id(select): [table for table in select.find_all(exp.Table) if table.parent_select is select]
        for select in selects
    }
    named = {
        of: {table.alias_or_name.lower(): table for table in tables}
        for of, tables in local.items()
        if len({table.name.lower() for table in tables}) == len(tables)
    }
    for column in tree.find_all(exp.Column):
        scope = column.parent_select
        tables = named.get(id(scope), {})
        having = [name for name, of in tables.items() if column.name.lower() in columns.get(of.name.lower(), {})]
        if form == "full" and not column.table and len(having) == 1:
            column.set("table", tables[having[0]].this.copy())
            continue
        while scope and column.table.lower() not in {table.alias_or_name.lower() for table in local[id(scope)]}:
            scope = scope.parent_select
        if scope is None or id(scope) not in named:
            continue
        is_alone = form != "full" and len(tables) == 1 and not scope.args.get("joins")
        if form == "columns" and not _computes_a_table(scope) and not _is_in_condition(column, scope):
            is_alone |= len(having) == 1
        is_alone &= column.parent_select is scope
        column.set("table", None if is_alone else named[id(scope)][column.table.lower()].this.copy())
    for tables in named.values():
        for table in tables.values():
            table.set("alias", None)
    if form != "tables":
        order_conditions(tree)


def order_conditions(tree: exp.Expression) -> None:
    """Write the joined table's column last in the equalities of a join's condition."""
    for join in tree.find_all(exp.Join):
        joined, condition = join.alias_or_name.lower(), join.args.get("on")
        for equal in condition.find_all(exp.EQ) if condition else ():
            left, right = equal.left, equal.right
            are_columns = isinstance(left, exp.Column) and isinstance(right, exp.Column)
            if are_columns and left.table.lower() == joined != right.table.lower():
                equal.set("this", right)
                equal.set("expression", left)


def _computes_a_table(scope: exp.Select) -> bool:
    """Return whether a query reads from a subquery, whose columns are unknown here."""
    return any(
        isinstance(item.parent, exp.From | exp.Join) and item.parent_select is scope
        for item in scope.find_all(exp.Subquery)
    )


def _is_in_condition(column: exp.Column, scope: exp.Select) -> bool:
    """Return whether a column is in the condition of one of a query's joins."""
    above = column.parent
    while above is not None and above is not scope:
        if isinstance(above, exp.Join):
            return True
        above = above.parent
    return False


def with_one_spelling(questions: list[dict[str, str]], databases: Path, form: Form) -> list[dict[str, str]]:
    """Return the questions, with the restyled gold as `demonstration` if both return the same."""
    paths = [str(databases / question["db_id"] / f"{question['db_id']}.sqlite") for question in questions]
    schemas = {path: read_schema(path) for path in set(paths)}
    output = [
        respell(question["sql"], schemas[path], form) or question["sql"]
        for question, path in zip(questions, paths, strict=True)
    ]
    with Executor(limits=Limits(timeout_ms=None, vm_steps=200_000_000)) as executor:
        result = executor.score_many(
            paths, output, [question["sql"] for question in questions], rules=("bird", "refined")
        )
    is_same = [bool(item) for item in (result["bird"] == 1) & (result["refined"] == 1)]
    changed = sum(
        same and new != question["sql"] for same, new, question in zip(is_same, output, questions, strict=True)
    )
    print(
        f"golds in one spelling: {changed} of {len(questions)} changed, {len(is_same) - sum(is_same)} kept as they are"
    )
    return [
        {**question, "demonstration": new} if same else question
        for same, new, question in zip(is_same, output, questions, strict=True)
    ]


def split(data: Path, out: Path, form: Form) -> None:
    """Write spider_train with demonstrations in one style, the lists of ids and `choose`; link the other splits."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in ("spider_dev", "spider_dev_testsuite", "bird_superhero"):
        if (data / folder).is_dir() and not (out / folder).exists():
            (out / folder).symlink_to((data / folder).resolve())
    lines = (data / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    databases = (data / "spider_train" / "databases").resolve()
    questions = with_one_spelling([json.loads(line) for line in lines], databases, form)
    parts = assign_databases(sorted({question["db_id"] for question in questions}))
    _write(out / "spider_train", questions, databases)
    for name, chosen_databases in parts.items():
        chosen = [question for question in questions if question["db_id"] in chosen_databases]
        if name == "choose":
            _write(out / name, chosen, databases)
        else:
            _write_ids(out / f"{name}.ids", chosen)
        if name == "grpo":
            _write_ids(out / "grpo-joins.ids", select_mostly_joins(chosen))
        print(f"{name}: {len(chosen_databases)} databases, {len(chosen)} questions")


def select_mostly_joins(questions: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the questions whose golds join tables, and half as many of the others, in the original order."""
    join = {question["id"] for question in questions if "join" in classify_sources(question["sql"])}
    others = sorted({question["id"] for question in questions} - join, key=_hash)
    remaining = join.union(others[: len(join) // 2])
    return [question for question in questions if question["id"] in remaining]


def classify_sources(sql: str) -> str:
    """Return the source of a query as a key of ADDED; queries that begin with WITH are never added."""
    low = sql.lower()
    if joins := low.count(" join "):
        return "joins" if joins > 1 else "join"
    return "with" if low.startswith("with") else "subquery" if "(select" in low else "one"


def add_joins(out: Path) -> None:
    """Write mixed_train and mixed.ids to the folder that `split` wrote."""
    questions = _lines(out / "spider_train" / "questions.jsonl")
    databases, ids = (out / "spider_train" / "databases").resolve(), (out / "sft.ids").read_text("utf-8").split()
    taught = set(ids)
    names = sorted({question["db_id"] for question in questions if question["id"] in taught})
    files = [str(databases / name / f"{name}.sqlite") for name in names]
    generated = out / "generated"
    arguments = ["--db", *files, "--n", str(GENERATED), "--link", "--out", str(generated)]
    if not generated.exists() and (code := synth(arguments)):
        sys.exit(code)
    result: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for line in _lines(generated / "questions.jsonl"):
        result[line["db_id"], classify_sources(line["sql"])].append(line)
    rng, added = random.Random(SEED), []
    for name in names:
        for what, most in ADDED.items():
            rng.shuffle(of_kind := result[name, what])
            added += [{**question, "id": f"generated_{question['id']}", "reasoning": ""} for question in of_kind[:most]]
    _write(out / "mixed_train", [*questions, *added], databases)
    text = "".join(f"{uid}\n" for uid in (*ids, *(question["id"] for question in added)))
    (out / "mixed.ids").write_text(text, encoding="utf-8")
    joining = sum("join" in classify_sources(question["sql"]) for question in added)
    print(f"mixed_train: {len(added)} generated questions added to {len(ids)}, {joining} with joins")


def _hash(name: str) -> str:
    return hashlib.sha256(f"{SEED} {name}".encode()).hexdigest()


def _write_ids(file: Path, questions: list[dict[str, str]]) -> None:
    file.write_text("".join(f"{question['id']}\n" for question in questions), encoding="utf-8")


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write(folder: Path, questions: list[dict[str, str]], databases: Path) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions)
    (folder / "questions.jsonl").write_text(text, encoding="utf-8")
    if not os.path.lexists(folder / "databases"):
        (folder / "databases").symlink_to(databases)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    form: Form = next((form for form in get_args(Form) if arguments[:1] == [form]), "columns")
    if len(arguments) != 2 + (arguments[:1] == [form]):
        sys.exit(__doc__)
    if arguments[0] == "joins":
        add_joins(Path(arguments[1]))
    else:
        split(Path(arguments[-2]), Path(arguments[-1]), form)
