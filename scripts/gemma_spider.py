"""Spider's training databases in three parts: `python scripts/gemma_spider.py DATA OUT`, for gemma_spider.sh.

`python scripts/gemma_spider.py joins OUT` adds a set to OUT that has generated questions, too: the split mixed_train,
spider_train with questions about the supervised phase's databases, most of which join, and the list mixed.ids.

DATA's splits are laid into OUT by links, the split `choose` and the lists sft.ids, grpo.ids and grpo-joins.ids beside
them. Databases of spider_train are dealt by a hash of the seed and their name: 29 of 139 to GRPO, 10 to choose a
checkpoint and rates on, the others to the supervised phase. No rate and no checkpoint is chosen on spider_dev; the form
of columns below was. Of GRPO's questions grpo-joins.ids has those whose golds join tables, and half as many of the
others, likewise by a hash.

What is taught is the gold in one spelling, `demonstration`: names as the schema has them, one blank between words,
keywords in capitals. Spider's golds are of many hands (`t1.city_id  =  t2.host_city` for City_ID and Host_City),
and a model that copies names from the schema has nothing to learn from that. Golds are judged by stay as they are; one
whose spelling changes what it returns is taught as it is. A word before DATA says how columns are written there:
`aliases` (as they are), `tables` (tables' names in place of aliases), `columns` (alone where only one of the query's
tables has them, since a small model puts columns under the wrong one of the tables that it joins; a join's condition
has tables' names, the joined one's last) or `full` (all of them under their tables' names, also where there is one
table, so that a column says what to read); `columns` where there is none. docs/tutorials/gemma_spider.md has the
results.
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
"""Questions that are generated about each database of the supervised phase, to choose from."""
ADDED = {"joins": 8, "join": 18, "subquery": 3, "one": 1}
"""How many of them are added at most, by what they read: more than two tables, two, a subquery's, or one."""


Form = Literal["aliases", "tables", "columns", "full"]
"""How columns are taught: under their tables' aliases or names, alone where one table has them, never alone."""


def deal(names: list[str]) -> dict[str, set[str]]:
    """Return which databases each part has."""
    dealt = sorted(names, key=_hash)
    grpo, choose = (max(round(share * len(names)), 1) for share in (GRPO, CHOOSE))
    return {"grpo": set(dealt[:grpo]), "choose": set(dealt[grpo : grpo + choose]), "sft": set(dealt[grpo + choose :])}


def respelled(sql: str, schema: Schema, form: Form) -> str | None:
    """Return a query with names as the schema spells them and texts in single quotes; None where it does not parse."""
    return _respelled(
        sql, form, {t.name.lower(): {c.name.lower(): c.name for c in t.columns} for t in schema.tables}, schema
    )


@none_if_it_fails
def _respelled(sql: str, form: Form, columns: dict[str, dict[str, str]], schema: Schema) -> str:
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
            column.replace(exp.Literal.string(column.name))  # SQLite takes a name that is none for a text
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
    """Write columns as `form` has them, which is not "aliases"; a table joined with itself keeps its aliases.

    `columns`: each table's, by names in small letters.
    """
    selects = list(tree.find_all(exp.Select))
    own = {id(one): [table for table in one.find_all(exp.Table) if table.parent_select is one] for one in selects}
    named = {
        of: {table.alias_or_name.lower(): table for table in tables}
        for of, tables in own.items()
        if len({table.name.lower() for table in tables}) == len(tables)
    }
    for column in tree.find_all(exp.Column):
        scope = column.parent_select
        tables = named.get(id(scope), {})
        having = [name for name, of in tables.items() if column.name.lower() in columns.get(of.name.lower(), {})]
        if form == "full" and not column.table and len(having) == 1:
            column.set("table", tables[having[0]].this.copy())
            continue
        while scope and column.table.lower() not in {table.alias_or_name.lower() for table in own[id(scope)]}:
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
    """Return whether a query reads from a subquery: what columns that has isn't known here."""
    return any(
        isinstance(one.parent, exp.From | exp.Join) and one.parent_select is scope
        for one in scope.find_all(exp.Subquery)
    )


def _is_in_condition(column: exp.Column, scope: exp.Select) -> bool:
    """Return whether a column stands in the condition of one of a query's joins."""
    above = column.parent
    while above is not None and above is not scope:
        if isinstance(above, exp.Join):
            return True
        above = above.parent
    return False


def with_one_spelling(questions: list[dict[str, str]], databases: Path, form: Form) -> list[dict[str, str]]:
    """Return the questions with their golds respelled as `demonstration`, where both return the same."""
    paths = [str(databases / one["db_id"] / f"{one['db_id']}.sqlite") for one in questions]
    schemas = {path: read_schema(path) for path in set(paths)}
    told = [
        respelled(one["sql"], schemas[path], form) or one["sql"] for one, path in zip(questions, paths, strict=True)
    ]
    with Executor(limits=Limits(timeout_ms=None, vm_steps=200_000_000)) as executor:
        found = executor.score_many(paths, told, [one["sql"] for one in questions], rules=("bird", "refined"))
    is_same = [bool(one) for one in (found["bird"] == 1) & (found["refined"] == 1)]
    changed = sum(same and new != one["sql"] for same, new, one in zip(is_same, told, questions, strict=True))
    print(
        f"golds in one spelling: {changed} of {len(questions)} changed, {len(is_same) - sum(is_same)} kept as they are"
    )
    return [
        {**one, "demonstration": new} if same else one for same, new, one in zip(is_same, told, questions, strict=True)
    ]


def split(data: Path, out: Path, form: Form) -> None:
    """Write spider_train with its golds in one spelling, the lists of ids and `choose`; link the other splits."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in ("spider_dev", "spider_dev_testsuite", "bird_superhero"):
        if (data / folder).is_dir() and not (out / folder).exists():
            (out / folder).symlink_to((data / folder).resolve())
    lines = (data / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    databases = (data / "spider_train" / "databases").resolve()
    questions = with_one_spelling([json.loads(line) for line in lines], databases, form)
    parts = deal(sorted({question["db_id"] for question in questions}))
    _write(out / "spider_train", questions, databases)
    for name, chosen_databases in parts.items():
        chosen = [question for question in questions if question["db_id"] in chosen_databases]
        if name == "choose":
            _write(out / name, chosen, databases)
        else:
            _write_ids(out / f"{name}.ids", chosen)
        if name == "grpo":
            _write_ids(out / "grpo-joins.ids", mostly_joins(chosen))
        print(f"{name}: {len(chosen_databases)} databases, {len(chosen)} questions")


def mostly_joins(questions: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the questions whose golds join tables, and half as many of the others, in their order."""
    join = {one["id"] for one in questions if "join" in kind(one["sql"])}
    others = sorted({one["id"] for one in questions} - join, key=_hash)
    kept = join.union(others[: len(join) // 2])
    return [one for one in questions if one["id"] in kept]


def kind(sql: str) -> str:
    """Return what a query reads, as ADDED has it; of those that begin with WITH none is added."""
    low = sql.lower()
    if joins := low.count(" join "):
        return "joins" if joins > 1 else "join"
    return "with" if low.startswith("with") else "subquery" if "(select" in low else "one"


def add_joins(out: Path) -> None:
    """Write mixed_train and mixed.ids beside what `split` wrote to OUT."""
    questions = _lines(out / "spider_train" / "questions.jsonl")
    databases, ids = (out / "spider_train" / "databases").resolve(), (out / "sft.ids").read_text("utf-8").split()
    taught = set(ids)
    names = sorted({one["db_id"] for one in questions if one["id"] in taught})
    files = [str(databases / name / f"{name}.sqlite") for name in names]
    generated = out / "generated"
    asked = ["--db", *files, "--n", str(GENERATED), "--link", "--out", str(generated)]
    if not generated.exists() and (code := synth(asked)):
        sys.exit(code)
    found: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for one in _lines(generated / "questions.jsonl"):
        found[one["db_id"], kind(one["sql"])].append(one)
    rng, added = random.Random(SEED), []
    for name in names:
        for what, most in ADDED.items():
            rng.shuffle(of_kind := found[name, what])
            added += [{**one, "id": f"generated_{one['id']}", "reasoning": ""} for one in of_kind[:most]]
    _write(out / "mixed_train", [*questions, *added], databases)
    text = "".join(f"{uid}\n" for uid in (*ids, *(one["id"] for one in added)))
    (out / "mixed.ids").write_text(text, encoding="utf-8")
    joining = sum("join" in kind(one["sql"]) for one in added)
    print(f"mixed_train: {len(added)} generated questions beside {len(ids)}, {joining} of them join")


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
    asked = sys.argv[1:]
    form: Form = next((one for one in get_args(Form) if asked[:1] == [one]), "columns")
    if len(asked) != 2 + (asked[:1] == [form]):
        sys.exit(__doc__)
    if asked[0] == "joins":
        add_joins(Path(asked[1]))
    else:
        split(Path(asked[-2]), Path(asked[-1]), form)
