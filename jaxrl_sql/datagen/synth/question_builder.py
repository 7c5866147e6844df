"""Build a question step by step: each step of a template chooses a part, with words and SQL under one name.

For example, the step `where` chooses a condition: its words replace `{where}` in the wordings, its SQL `{where}` in the
query. `templates.py` describes templates.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxrl_sql.datagen.synth.part_sampler import MEASURE, NoFit, PartSampler, is_repetitive, literal, round_value
from jaxrl_sql.datagen.synth.spec import AnnotatedColumn, AnnotatedTable, SynthDatabase, Value

# The kinds of columns that a template may ask for, as kinds of `AnnotatedColumn`.
KINDS = {
    "measure": MEASURE,
    "numeric": ("int", "real", "year"),
    "sortable": ("int", "real", "year", "date"),
    "category": ("category",),
    "date": ("date",),
    "text": ("text",),
}
IS_LABEL = ("the {t} whose {c} is {v}", "the {t} with {c} {v}", "the {t} that has {c} {v}")
WAYS = {True: ("descending", "decreasing"), False: ("ascending", "increasing")}
RANKS = {True: ("highest", "largest", "greatest"), False: ("lowest", "smallest")}
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
TIME_RANKS = {True: ("latest", "most recent"), False: ("earliest", "oldest")}


def _column_meets(column: AnnotatedColumn, need: str) -> bool:
    """Return whether a column meets `need`: a kind of `KINDS`, `nullable` (has NULLs) or `repeated` (repeats texts)."""
    if need == "nullable":
        return column.has_nulls
    if need == "repeated":
        return column.kind in ("category", "text") and len(set(column.values)) > 1 and is_repetitive(column)
    return column.kind in KINDS[need]


def _table_meets(table: AnnotatedTable, need: str) -> bool:
    """Return whether a table has a column that meets `need`.

    Further needs are `label` (a column that names the rows) and `grouped` (a category and a column of another kind).
    """
    if need == "label":
        return table.label is not None
    if need == "grouped":
        return {"category"} < {column.kind for column in table.columns}
    return not need or any(_column_meets(column, need) for column in table.columns)


class QuestionBuilder:
    """The parts of one question, and the choices between its forms.

    Each public method is a step of a template; its arguments are texts of the template. `need` is a property that the
    table or column must have (`_table_meets`, `_column_meets`). `of` is the part that names the table to choose from:
    `table`, or the `child`, `parent` or `top` of foreign keys. `share` is a probability.

    `words` and `sql` have the words and the SQL of each part. `choices` are the outcomes of random choices, by which
    templates select wordings (`[count]`). `chosen` has the words of the parts that `one` chose; they may contain other
    parts. `options` of the constructor are those of `Template`. Steps raise NoFit if the database has no such part.
    """

    def __init__(
        self, rng: random.Random, database: SynthDatabase, options: Mapping[tuple[str, str], Sequence[str]]
    ) -> None:
        self.words: dict[str, str] = {}
        self.sql: dict[str, str] = {}
        self.chosen: dict[str, str] = {}
        self.choices: set[str] = set()
        self._sample = PartSampler(rng)
        self._database = database
        self._options = options
        self._tables: dict[str, AnnotatedTable] = {}
        self._prefixes: dict[str, str] = {}
        self._used: dict[str, list[AnnotatedColumn]] = {}
        self._columns: dict[str, list[AnnotatedColumn]] = {}
        self._values: dict[str, Value] = {}
        self._synonyms: dict[str, tuple[str, ...]] = {}

    def table(self, need: str = "") -> None:
        """Choose a table that meets `need`."""
        table = self._sample.choose([table for table in self._database.tables if _table_meets(table, need)])
        self._set_table("table", table)
        self.words["singular"] = table.singular

    def link(self, need: str = "") -> None:
        """Choose a foreign key to a parent; `need` requires a parent with a `label`, or with a parent (`chained`)."""
        links = [
            (child, self._database.table(reference.table), reference)
            for child in self._database.tables
            for reference in child.references
        ]
        if need:
            links = [link for link in links if (link[1].label if need == "label" else link[1].references)]
        child, parent, reference = self._sample.choose(links)
        self._set_table("child", child)
        self._set_table("parent", parent)
        self._columns["reference"] = [reference.column]
        self.words["singular"] = parent.singular
        self.sql |= {"reference": reference.column.name, "target": reference.target}

    def join(self, need: str = "") -> None:
        """Choose a foreign key and join its tables; columns chosen afterwards are written as `T1.x` and `T2.x`."""
        self.link(need)
        self._prefixes |= {"child": "T1.", "parent": "T2."}
        self.sql["id"] = f"T2.{self._tables['parent'].key.name}"
        join = "{child} AS T1 JOIN {parent} AS T2 ON T1.{reference} = T2.{target}"
        self.sql["join"] = join.format_map(self.sql)

    def grandparent(self) -> None:
        """Choose a foreign key of the parent and join its table, the `top`, as T3."""
        reference = self._sample.choose(self._tables["parent"].references)
        top = self._database.table(reference.table)
        self._set_table("top", top, "T3.")
        self.words["singular"] = top.singular
        self.sql["join"] += f" JOIN {top.name} AS T3 ON T2.{reference.column.name} = T3.{reference.target}"

    def column(self, need: str, of: str = "table", part: str = "column") -> None:
        """Choose a column that meets `need`, as the part `part`."""
        self._set_column(part, self._choose_column(need, of), of)

    def group(self, need: str, of: str = "table") -> None:
        """Choose a column to group by, as the part `group`."""
        self.column(need, of, "group")

    def label(self, of: str = "table") -> None:
        """Take the label of a table: the column that names its rows."""
        label = self._tables[of].label
        if label is None:
            raise NoFit
        self._set_column("label", label, of)
        self.words["label"] = label.words

    def shown(self, of: str = "table") -> None:
        """Choose a result column, usually the label; a further call adds another one."""
        columns = [column for column in self._tables[of].columns if column not in self._used[of]]
        shown = self._tables[of].label
        if shown is None or shown not in columns or not self._sample.chance(0.65):
            shown = self._sample.choose([column for column in columns if column.kind != "bool"])
        self._set_column("shown", shown, of)

    def count_or_show(self, share: str, of: str = "table") -> None:
        """Ask for the number of rows with probability `share`, else for a column."""
        if self._sample.chance(float(share)):
            self.choices.add("count")
            self.sql["shown"] = "COUNT(*)"
        else:
            self.shown(of)
            self.say("shown")

    def known(self, part: str) -> None:
        """Require that the column of a part has no NULLs; raises NoFit otherwise."""
        if self._columns[part][0].has_nulls:
            raise NoFit

    def value(self, part: str = "column") -> None:
        """Choose a value of the column."""
        self._set_value("value", self._sample.value(self._columns[part][0]))

    def other(self) -> None:
        """Choose a second value of the column."""
        self._set_value("other", self._sample.value(self._columns["column"][0], self._values["value"]))

    def middle(self) -> None:
        """Choose a value of the column near its median."""
        column = self._columns["column"][0]
        self._set_value("middle", round_value(column, self._sample.quantile(column, 0.35, 0.6), is_up=True))

    def bounds(self) -> None:
        """Choose a low and a high value of the column."""
        column = self._columns["column"][0]
        self._set_value("low", round_value(column, self._sample.quantile(column, 0.05, 0.4), is_up=False))
        self._set_value("high", round_value(column, self._sample.quantile(column, 0.55, 0.95), is_up=True))
        if self._values["low"] == self._values["high"]:
            raise NoFit

    def pattern(self) -> None:
        """Choose the first letter of the value (`start`) or a `word` of it; the column may still be a result column."""
        text = self.words["value"]
        is_start = self._sample.chance(0.5) and text[0].isalpha()
        part = text[0] if is_start else self._sample.choose(text.split(" "))
        self.choices.add("start" if is_start else "word")
        self.words["part"], self.sql["part"] = part, literal(f"{part}%" if is_start else f"%{part}%")
        self._used["table"].clear()

    def month(self) -> None:
        """Choose the month of a value of a date column: its English name, and its number as two digits."""
        number = str(self._sample.value(self._columns["column"][0]))[5:7]
        self.words["month"], self.sql["month"] = MONTHS[int(number) - 1], literal(number)

    def k(self, low: str, high: str) -> None:
        """Choose the number of rows to return, from `low` to `high` inclusive."""
        self._set_k(self._sample.rng.randint(int(low), int(high)))

    def k_children(self) -> None:
        """Choose a number of children that some parents have."""
        counts = sorted(Counter(self._columns["reference"][0].values).values())
        if len(counts) < 4:
            raise NoFit
        self._set_k(counts[int((len(counts) - 1) * self._sample.rng.uniform(0.4, 0.95))])

    def where(self, of: str = "table") -> None:
        """Choose a condition (`where`), or a second one (`where2`), on an unused column."""
        part = "where2" if "where" in self.sql else "where"
        self.sql[part], self.words[part] = self._condition(of)

    def filter(self, share: str) -> None:
        """Choose a condition with probability `share`; without one, the part `filter` is empty."""
        self.sql["filter"] = self.words["filter"] = ""
        if self._sample.chance(float(share)):
            sql, phrase = self._condition("table")
            self.sql["filter"], self.words["filter"] = f" WHERE {sql}", f" {phrase}"

    def owner(self) -> None:
        """Choose a parent by its label, or a condition on parents."""
        parent = self._tables["parent"]
        if parent.label is not None and self._sample.chance(0.5):
            value = self._sample.value(parent.label)
            sql = f"T2.{parent.label.name} = {literal(value)}"
            phrase = self._sample.choose(IS_LABEL).format(t=parent.singular, c=parent.label.words, v=value)
        else:
            sql, phrase = self._condition("parent")
            phrase = f"{self._sample.plural(parent)} {phrase}"
        self.sql["owner"], self.words["owner"] = sql, phrase

    def aggregate(self, need: str, of: str = "table") -> None:
        """Choose an aggregate of a column."""
        column = self._choose_column(need, of)
        self._used[of].append(column)
        self.sql["aggregate"], self.words["aggregate"] = self._sample.aggregate(column, self._prefixes[of])

    def count_or_aggregate(self, share: str, need: str, of: str) -> None:
        """Count with probability `share`, else aggregate a column."""
        if self._sample.chance(float(share)):
            self.sql["aggregate"], self.words["aggregate"] = "COUNT(*)", "number"
        else:
            self.aggregate(need, of)

    def order(self, share: str) -> None:
        """Order by the column, descending with probability `share`; `say` may choose other words for it."""
        is_highest = self._sample.chance(float(share))
        is_time = self._columns["column"][0].kind in ("date", "year")
        self.sql["way"] = "DESC" if is_highest else "ASC"
        self._synonyms = {"way": WAYS[is_highest], "rank": (TIME_RANKS if is_time else RANKS)[is_highest]}
        self.words |= {part: texts[0] for part, texts in self._synonyms.items()}

    def say(self, *parts: str) -> None:
        """Choose the words of parts: names or synonyms of tables and columns, or words for an order."""
        for part in parts:
            if part in self._tables:
                self.words[part] = self._sample.plural(self._tables[part])
            elif part in self._columns:
                self.words[part] = " and ".join(self._sample.words(column) for column in self._columns[part])
            else:
                self.words[part] = self._sample.choose(self._synonyms[part])

    def kind(self) -> None:
        """Add the choice `number` if the column is a number, else `time`."""
        self.choices.add("number" if self._columns["column"][0].kind in MEASURE else "time")

    def either(self, share: str, first: str, second: str) -> None:
        """Choose the SQL `first` with probability `share`, else `second`; `_` in them is a space."""
        self.sql["either"] = (first if self._sample.chance(float(share)) else second).replace("_", " ")
        self.choices.add(self.sql["either"])

    def one(self, part: str) -> None:
        """Choose one of the template's options of a part, among those of a choice that was made before."""
        by_choice = {choice: texts for (name, choice), texts in self._options.items() if name == part}
        options = next(texts for choice, texts in by_choice.items() if choice in ("", *self.choices))
        text = self._sample.choose(options) if len(options) > 1 else options[0]
        self.sql[part], _, phrase = text.partition(" as ")
        self.chosen[part] = phrase or text
        self.choices.add(self.sql[part])

    def _set_table(self, part: str, table: AnnotatedTable, prefix: str = "") -> None:
        self._tables[part], self._prefixes[part], self._used[part] = table, prefix, []
        self.sql[part] = table.name

    def _set_column(self, part: str, column: AnnotatedColumn, of: str) -> None:
        self._columns.setdefault(part, []).append(column)
        self._used[of].append(column)
        self.sql[part] = ", ".join(self._prefixes[of] + column.name for column in self._columns[part])

    def _set_value(self, part: str, value: Value) -> None:
        self._values[part] = value
        self.words[part], self.sql[part] = str(value), literal(value)

    def _set_k(self, k: int) -> None:
        self.choices.add("one" if k == 1 else "several")
        self.words["k"] = self.sql["k"] = str(k)
        self.sql["next"] = str(k + 1)

    def _choose_column(self, need: str, of: str) -> AnnotatedColumn:
        return self._sample.choose([column for column in self._tables[of].columns if _column_meets(column, need)])

    def _condition(self, of: str) -> tuple[str, str]:
        column, sql, phrase = self._sample.condition(self._tables[of], self._used[of], self._prefixes[of])
        self._used[of].append(column)
        return sql, phrase
