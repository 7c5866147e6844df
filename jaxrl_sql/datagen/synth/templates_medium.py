"""Ask medium questions: one table with order, limits, distinct values, ranges, patterns, NULL tests, simple groups."""

from __future__ import annotations

from jaxrl_sql.datagen.synth.question_builder import (
    MEASURE,
    SORTABLE,
    NoFit,
    QuestionBuilder,
    QuestionCandidate,
    listing,
    literal,
)
from jaxrl_sql.datagen.synth.spec import Column


def _rank_words(column: Column, is_highest: bool) -> tuple[str, ...]:
    if column.kind in ("date", "year"):
        return ("latest", "most recent") if is_highest else ("earliest", "oldest")
    return ("highest", "largest", "greatest") if is_highest else ("lowest", "smallest")


def _order(column: Column, is_highest: bool) -> str:
    return f"{column.name} DESC" if is_highest else f"{column.name} ASC"


def ordered(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of every row in an order."""
    table = s.table_with(*SORTABLE)
    key = s.column(table, SORTABLE)
    shown = s.shown(table, (key,))
    is_highest = s.rng.random() < 0.5
    what, many, by = s.say(shown), s.many(table), s.say(key)
    way = s.one(("descending", "decreasing") if is_highest else ("ascending", "increasing"))
    texts = (
        f"List the {what} of all {many} in {way} order of {by}.",
        f"Show the {what} of {many} sorted by {by} in {way} order.",
        f"What is the {what} of every one of the {many}, ordered by {by} {way}?",
        f"Give the {what} of {many} ordered by {way} {by}.",
        f"Sort the {many} by {by} in {way} order and show the {what}.",
    )
    sql = f"SELECT {shown.name} FROM {table.name} ORDER BY {_order(key, is_highest)}"
    return QuestionCandidate(texts, sql, sort_check=f"SELECT {key.name}, {shown.name} FROM {table.name}")


def ordered_filtered(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the rows that meet a condition, in an order."""
    table = s.table_with(*SORTABLE)
    key = s.column(table, SORTABLE)
    shown = s.shown(table, (key,))
    where = s.condition(table, without=(shown, key))
    is_highest = s.rng.random() < 0.5
    way = "descending" if is_highest else "ascending"
    what, things, by = s.say(shown), f"{s.many(table)} {where.words}", s.say(key)
    texts = (
        f"List the {what} of {things}, in {way} order of {by}.",
        f"Show the {what} of {things}, sorted by {by} in {way} order.",
        f"What is the {what} of {things}, ordered by {way} {by}?",
        f"Find the {what} of the {things} and sort them by {by} in {way} order.",
    )
    rest = f"FROM {table.name} WHERE {where.sql}"
    sql = f"SELECT {shown.name} {rest} ORDER BY {_order(key, is_highest)}"
    return QuestionCandidate(texts, sql, sort_check=f"SELECT {key.name}, {shown.name} {rest}")


def top_k(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the k first rows in an order."""
    table = s.table_with(*SORTABLE)
    key = s.column(table, SORTABLE)
    shown = s.shown(table, (key,))
    is_highest, k = s.rng.random() < 0.6, s.rng.randint(2, 6)
    what, many, by, rank = s.say(shown), s.many(table), s.say(key), s.one(_rank_words(key, is_highest))
    texts = (
        f"List the {what} of the {k} {many} with the {rank} {by}.",
        f"What is the {what} of the top {k} {many} with the {rank} {by}?",
        f"Show the {what} of the {k} {many} that have the {rank} {by}.",
        f"Which {k} {many} have the {rank} {by}? Give the {what}.",
        f"Find the {k} {many} with the {rank} {by} and show the {what}.",
    )
    rest = f"FROM {table.name} ORDER BY {_order(key, is_highest)} LIMIT"
    return QuestionCandidate(texts, f"SELECT {shown.name} {rest} {k}", f"SELECT {key.name} {rest} {k + 1}")


def superlative(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the first row in an order."""
    table = s.table_with(*SORTABLE)
    key = s.column(table, SORTABLE)
    shown = s.shown(table, (key,))
    is_highest = s.rng.random() < 0.6
    what, by, rank = s.say(shown), s.say(key), s.one(_rank_words(key, is_highest))
    texts = (
        f"What is the {what} of the {table.singular} with the {rank} {by}?",
        f"Find the {what} of the {table.singular} that has the {rank} {by}.",
        f"Which {table.singular} has the {rank} {by}? Show the {what}.",
        f"Show the {what} of the {table.singular} with the {rank} {by}.",
        f"Give the {what} for the {table.singular} whose {by} is the {rank}.",
    )
    rest = f"FROM {table.name} ORDER BY {_order(key, is_highest)} LIMIT"
    return QuestionCandidate(texts, f"SELECT {shown.name} {rest} 1", f"SELECT {key.name} {rest} 2")


def superlative_filtered(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the first row in an order, among those that meet a condition."""
    table = s.table_with(*SORTABLE)
    key = s.column(table, SORTABLE)
    shown = s.shown(table, (key,))
    where = s.condition(table, without=(shown, key))
    is_highest = s.rng.random() < 0.6
    what, by, rank = s.say(shown), s.say(key), s.one(_rank_words(key, is_highest))
    things = f"{s.many(table)} {where.words}"
    texts = (
        f"Among {things}, what is the {what} of the one with the {rank} {by}?",
        f"Of all {things}, show the {what} of the one with the {rank} {by}.",
        f"Find the {what} of the one with the {rank} {by} among the {things}.",
        f"Considering only {things}, which one has the {rank} {by}? Give the {what}.",
    )
    rest = f"FROM {table.name} WHERE {where.sql} ORDER BY {_order(key, is_highest)} LIMIT"
    return QuestionCandidate(texts, f"SELECT {shown.name} {rest} 1", f"SELECT {key.name} {rest} 2")


def distinct_values(s: QuestionBuilder) -> QuestionCandidate:
    """Show the different values of a column, of all rows or of those that meet a condition."""
    table = s.table(lambda table: _repeated(s, table.columns))
    column = s.one(_repeated(s, table.columns))
    where = s.condition(table, without=(column,)) if s.rng.random() < 0.5 else None
    things = s.many(table) + (f" {where.words}" if where else "")
    said = s.say(column)
    texts = (
        f"What are the different {said} values of {things}?",
        f"List the distinct {said} of {things}.",
        f"Show all the different {said} values found among {things}.",
        f"Find the unique {said} values of the {things}.",
        f"Give every {said} of {things} without repetition.",
    )
    clause = f" WHERE {where.sql}" if where else ""
    return QuestionCandidate(texts, f"SELECT DISTINCT {column.name} FROM {table.name}{clause}")


def count_distinct(s: QuestionBuilder) -> QuestionCandidate:
    """Count the different values of a column."""
    table = s.table(lambda table: _repeated(s, table.columns))
    column = s.one(_repeated(s, table.columns))
    many, said = s.many(table), s.say(column)
    texts = (
        f"How many different {said} values do {many} have?",
        f"Count the distinct {said} of {many}.",
        f"What is the number of different {said} values among {many}?",
        f"Find the number of unique {said} values of the {many}.",
    )
    return QuestionCandidate(texts, f"SELECT COUNT(DISTINCT {column.name}) FROM {table.name}")


def _repeated(s: QuestionBuilder, columns: tuple[Column, ...]) -> list[Column]:
    del s
    return [
        column
        for column in columns
        if column.kind in ("category", "text") and 1 < len(set(column.values)) < len(column.values) // 3
    ]


def between(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of, or count, the rows whose value lies in a range."""
    table = s.table_with(*SORTABLE)
    column = s.column(table, SORTABLE)
    low, high = s.inner_value(column, 0.05, 0.4), s.inner_value(column, 0.55, 0.95)
    if low == high:
        raise NoFit
    said = s.say(column)
    words = s.one(("whose {} is between {} and {}", "with {} between {} and {}", "with a {} from {} to {}"))
    things = f"{s.many(table)} {words.format(said, low, high)}"
    clause = f"FROM {table.name} WHERE {column.name} BETWEEN {literal(low)} AND {literal(high)}"
    if s.rng.random() < 0.4:
        texts = (
            f"How many {things} are there?",
            f"Count the {things}.",
            f"Find the number of {things}.",
            f"What is the number of {things}?",
        )
        return QuestionCandidate(texts, f"SELECT COUNT(*) {clause}")
    shown = s.shown(table, (column,))
    return QuestionCandidate(listing(s.say(shown), things), f"SELECT {shown.name} {clause}")


def like(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of, or count, the rows whose text holds a word or starts with a letter."""
    table = s.table_with("text")
    column = s.column(table, ("text",))
    value = str(s.value(column))
    said = s.say(column)
    if s.rng.random() < 0.5 and value[0].isalpha():
        part, pattern = value[0], f"{value[0]}%"
        words = s.one(
            ("whose {} starts with {}", "with a {} that begins with {}", "whose {} begins with the letter {}")
        )
    else:
        part = s.one(value.split(" "))
        pattern = f"%{part}%"
        words = s.one(("whose {} contains {}", "with a {} that contains {}", "whose {} includes the word {}"))
    things = f"{s.many(table)} {words.format(said, part)}"
    clause = f"FROM {table.name} WHERE {column.name} LIKE {literal(pattern)}"
    if s.rng.random() < 0.4:
        texts = (
            f"How many {things} are there?",
            f"Count the {things}.",
            f"Find the number of {things}.",
            f"What is the number of {things}?",
        )
        return QuestionCandidate(texts, f"SELECT COUNT(*) {clause}")
    shown = s.shown(table)
    return QuestionCandidate(listing(s.say(shown), things), f"SELECT {shown.name} {clause}")


def null_test(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of, or count, the rows where a value is missing or known."""
    table = s.table(lambda table: any(column.has_nulls for column in table.columns))
    column = s.one([column for column in table.columns if column.has_nulls])
    is_missing = s.rng.random() < 0.6
    said = s.say(column)
    words = s.one(
        ("without a {}", "whose {} is missing", "that have no {}", "whose {} is unknown")
        if is_missing
        else ("that have a {}", "whose {} is known", "whose {} is not missing", "with a known {}")
    )
    things = f"{s.many(table)} {words.format(said)}"
    clause = f"FROM {table.name} WHERE {column.name} IS {'' if is_missing else 'NOT '}NULL"
    if s.rng.random() < 0.5:
        texts = (
            f"How many {things} are there?",
            f"Count the {things}.",
            f"Find the number of {things}.",
            f"What is the number of {things}?",
        )
        return QuestionCandidate(texts, f"SELECT COUNT(*) {clause}")
    shown = s.shown(table, (column,))
    return QuestionCandidate(listing(s.say(shown), things), f"SELECT {shown.name} {clause}")


def unequal(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the rows that do not have a category."""
    table = s.table_with("category")
    column = s.column(table, ("category",))
    shown = s.shown(table, (column,))
    value = s.value(column)
    words = s.one(("whose {} is not {}", "with a {} other than {}", "where the {} is different from {}"))
    things = f"{s.many(table)} {words.format(s.say(column), value)}"
    return QuestionCandidate(
        listing(s.say(shown), things), f"SELECT {shown.name} FROM {table.name} WHERE {column.name} != {literal(value)}"
    )


def count_by_category(s: QuestionBuilder) -> QuestionCandidate:
    """Count the rows of every category."""
    table = s.table_with("category")
    column = s.column(table, ("category",))
    many, said = s.many(table), s.say(column)
    texts = (
        f"How many {many} are there for each {said}?",
        f"Count the {many} of each {said}.",
        f"For each {said}, show the number of {many}.",
        f"Show each {said} and the number of {many} with it.",
        f"List every {said} together with how many {many} have it.",
    )
    return QuestionCandidate(texts, f"SELECT {column.name}, COUNT(*) FROM {table.name} GROUP BY {column.name}")


def aggregate_by_category(s: QuestionBuilder) -> QuestionCandidate:
    """Aggregate a measure for every category."""
    table = s.table(lambda table: {"category"} < {column.kind for column in table.columns})
    group = s.column(table, ("category",))
    sql, said = s.aggregate(s.column(table, MEASURE))
    many, by = s.many(table), s.say(group)
    texts = (
        f"What is the {said} of {many} for each {by}?",
        f"For each {by}, show the {said} of {many}.",
        f"Show each {by} and the {said} of its {many}.",
        f"Find the {said} of {many} per {by}.",
        f"Give every {by} with the {said} of the {many}.",
    )
    return QuestionCandidate(texts, f"SELECT {group.name}, {sql} FROM {table.name} GROUP BY {group.name}")


MEDIUM = (
    (ordered, 2),
    (ordered_filtered, 2),
    (top_k, 3),
    (superlative, 3),
    (superlative_filtered, 2),
    (distinct_values, 2),
    (count_distinct, 1),
    (between, 3),
    (like, 2),
    (null_test, 2),
    (unequal, 2),
    (count_by_category, 2),
    (aggregate_by_category, 2),
)
