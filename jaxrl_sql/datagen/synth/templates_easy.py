"""Ask easy questions: one table, filters and aggregates."""

from __future__ import annotations

from jaxrl_sql.datagen.synth.question_builder import (
    MEASURE,
    NUMERIC,
    SORTABLE,
    QuestionBuilder,
    QuestionCandidate,
    listing,
    literal,
)


def list_filtered(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the rows that meet a condition."""
    table = s.table()
    shown = s.shown(table)
    where = s.condition(table, without=(shown,))
    texts = listing(s.say(shown), f"{s.many(table)} {where.words}")
    return QuestionCandidate(texts, f"SELECT {shown.name} FROM {table.name} WHERE {where.sql}")


def list_two_columns(s: QuestionBuilder) -> QuestionCandidate:
    """Show two columns of the rows that meet a condition."""
    table = s.table()
    first = s.shown(table)
    second = s.shown(table, (first,))
    where = s.condition(table, without=(first, second))
    texts = listing(f"{s.say(first)} and {s.say(second)}", f"{s.many(table)} {where.words}")
    return QuestionCandidate(texts, f"SELECT {first.name}, {second.name} FROM {table.name} WHERE {where.sql}")


def count_all(s: QuestionBuilder) -> QuestionCandidate:
    """Count the rows of a table."""
    table = s.table()
    many = s.many(table)
    texts = (
        f"How many {many} are there?",
        f"Count the {many}.",
        f"What is the number of {many}?",
        f"Give the total number of {many}.",
        f"How many {many} do we have in total?",
    )
    return QuestionCandidate(texts, f"SELECT COUNT(*) FROM {table.name}")


def count_filtered(s: QuestionBuilder) -> QuestionCandidate:
    """Count the rows that meet a condition."""
    table = s.table()
    where = s.condition(table)
    things = f"{s.many(table)} {where.words}"
    texts = (
        f"How many {things} are there?",
        f"Count the {things}.",
        f"What is the number of {things}?",
        f"Find the number of {things}.",
        f"How many {things} exist?",
    )
    return QuestionCandidate(texts, f"SELECT COUNT(*) FROM {table.name} WHERE {where.sql}")


def aggregate_all(s: QuestionBuilder) -> QuestionCandidate:
    """Aggregate a measure over a table."""
    table = s.table_with(*SORTABLE)
    sql, said = s.aggregate(s.column(table, SORTABLE))
    texts = _aggregate_texts(said, f"all {s.many(table)}")
    return QuestionCandidate(texts, f"SELECT {sql} FROM {table.name}")


def aggregate_filtered(s: QuestionBuilder) -> QuestionCandidate:
    """Aggregate a measure over the rows that meet a condition."""
    table = s.table_with(*MEASURE)
    column = s.column(table, MEASURE)
    sql, said = s.aggregate(column)
    where = s.condition(table, without=(column,))
    texts = _aggregate_texts(said, f"{s.many(table)} {where.words}")
    return QuestionCandidate(texts, f"SELECT {sql} FROM {table.name} WHERE {where.sql}")


def _aggregate_texts(said: str, things: str) -> tuple[str, ...]:
    return (
        f"What is the {said} of {things}?",
        f"Find the {said} of {things}.",
        f"Give the {said} across {things}.",
        f"Show the {said} for {things}.",
        f"Compute the {said} over {things}.",
    )


def look_up(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the row with a given label."""
    table = s.table(lambda table: table.label is not None)
    label = s.label(table)
    shown = s.shown(table, (label,))
    value = s.value(label)
    said = s.say(shown)
    texts = (
        f"What is the {said} of the {table.singular} whose {label.words} is {value}?",
        f"Show the {said} of the {table.singular} with {label.words} {value}.",
        f"Find the {said} for the {table.singular} whose {label.words} is {value}.",
        f"Which {said} does the {table.singular} with {label.words} {value} have?",
        f"Give the {said} of the {table.singular} with the {label.words} {value}.",
    )
    return QuestionCandidate(texts, f"SELECT {shown.name} FROM {table.name} WHERE {label.name} = {literal(value)}")


def list_both(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the rows that meet two conditions."""
    table = s.table()
    shown = s.shown(table)
    first = s.condition(table, without=(shown,))
    second = s.condition(table, without=(shown, first.column))
    texts = listing(s.say(shown), f"{s.many(table)} {first.words} and {second.words}")
    return QuestionCandidate(texts, f"SELECT {shown.name} FROM {table.name} WHERE {first.sql} AND {second.sql}")


def count_either(s: QuestionBuilder) -> QuestionCandidate:
    """Count the rows that have one of two categories."""
    table = s.table_with("category")
    column = s.column(table, ("category",))
    one = s.value(column)
    other = s.one([value for value in column.values if value not in (one, None)])
    many, said = s.many(table), s.say(column)
    texts = (
        f"How many {many} have {said} {one} or {other}?",
        f"Count the {many} whose {said} is {one} or {other}.",
        f"What is the number of {many} with {said} {one} or {other}?",
        f"Find the number of {many} where the {said} is either {one} or {other}.",
    )
    sql = f"SELECT COUNT(*) FROM {table.name} WHERE {column.name} = {literal(one)} OR {column.name} = {literal(other)}"
    return QuestionCandidate(texts, sql)


def two_aggregates(s: QuestionBuilder) -> QuestionCandidate:
    """Show the lowest and the highest value of a measure."""
    table = s.table_with(*NUMERIC)
    column = s.column(table, NUMERIC)
    many, said = s.many(table), s.say(column)
    texts = (
        f"What are the minimum and maximum {said} of {many}?",
        f"Show the minimum and the maximum {said} of all {many}.",
        f"Find the lowest and highest {said} among {many}.",
        f"Give the smallest and largest {said} of the {many}.",
    )
    return QuestionCandidate(texts, f"SELECT MIN({column.name}), MAX({column.name}) FROM {table.name}")


def list_all(s: QuestionBuilder) -> QuestionCandidate:
    """Show one or two columns of every row."""
    table = s.table()
    first = s.shown(table)
    second = s.shown(table, (first,))
    texts = listing(f"{s.say(first)} and {s.say(second)}", s.many(table))
    return QuestionCandidate(texts, f"SELECT {first.name}, {second.name} FROM {table.name}")


EASY = (
    (list_filtered, 4),
    (list_two_columns, 3),
    (count_all, 1),
    (count_filtered, 4),
    (aggregate_all, 3),
    (aggregate_filtered, 3),
    (look_up, 3),
    (list_both, 2),
    (count_either, 1),
    (two_aggregates, 1),
    (list_all, 1),
)
