"""Ask extra hard questions: nested queries, set operations, common table expressions."""

from __future__ import annotations

from jaxrl_sql.datagen.synth.question_builder import (
    MEASURE,
    SORTABLE,
    Condition,
    Link,
    NoFit,
    QuestionBuilder,
    QuestionCandidate,
    listing,
    literal,
)
from jaxrl_sql.datagen.synth.spec import Column, Table


def _named(link: Link) -> bool:
    return link.parent.label is not None


def above_average(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of, or count, the rows above or below the average of a measure."""
    table = s.table_with(*MEASURE)
    column = s.column(table, MEASURE)
    sign, relation = s.one(((">", "above"), (">", "higher than"), ("<", "below"), ("<", "lower than")))
    said = s.say(column)
    words = s.one(("whose {c} is {r} the average {c}", "with {c} {r} the average", "whose {c} is {r} average"))
    things = f"{s.many(table)} {words.format(c=said, r=relation)}"
    clause = f"FROM {table.name} WHERE {column.name} {sign} (SELECT AVG({column.name}) FROM {table.name})"
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


def above_group_average(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the rows above the average of the rows that meet a condition."""
    table = s.table_with(*MEASURE)
    column = s.column(table, MEASURE)
    shown = s.shown(table, (column,))
    where = s.condition(table, without=(column, shown))
    function, said_function = s.one((("AVG", "average"), ("AVG", "average"), ("MAX", "highest")))
    said, many = s.say(column), s.many(table)
    words = s.one(
        (
            "whose {c} is greater than the {f} {c} of {m} {w}",
            "with {c} above the {f} {c} of {m} {w}",
            "whose {c} exceeds the {f} {c} of {m} {w}",
            "with a higher {c} than the {f} {c} of {m} {w}",
        )
    )
    things = f"{many} {words.format(c=said, f=said_function, m=many, w=where.words)}"
    inner = f"SELECT {function}({column.name}) FROM {table.name} WHERE {where.sql}"
    return QuestionCandidate(
        listing(s.say(shown), things), f"SELECT {shown.name} FROM {table.name} WHERE {column.name} > ({inner})"
    )


def at_extreme(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of all rows that hold the highest or the lowest value."""
    table = s.table_with(*SORTABLE)
    column = s.column(table, SORTABLE)
    shown = s.shown(table, (column,))
    function, rank = s.one((("MAX", "maximum"), ("MIN", "minimum")))
    what, many, said = s.say(shown), s.many(table), s.say(column)
    texts = (
        f"List the {what} of all {many} whose {said} equals the {rank} {said}.",
        f"Show the {what} of every one of the {many} that has the {rank} {said}.",
        f"What is the {what} of all {many} with {said} equal to the {rank}?",
        f"Find the {what} of {many} whose {said} is the {rank} {said}.",
    )
    inner = f"SELECT {function}({column.name}) FROM {table.name}"
    return QuestionCandidate(texts, f"SELECT {shown.name} FROM {table.name} WHERE {column.name} = ({inner})")


def above_one_row(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the rows above the row with a given label."""
    table = s.table(lambda table: table.label is not None)
    label, column = s.label(table), s.column(table, SORTABLE)
    value = s.value(label)
    sign, words = (
        s.one(((">", "higher"), ("<", "lower")))
        if column.kind in MEASURE
        else s.one(((">", "later"), ("<", "earlier")))
    )
    many, said, what = s.many(table), s.say(column), label.words
    one = f"the {table.singular} with {what} {value}"
    texts = (
        f"List the {what} of {many} with a {words} {said} than {one}.",
        f"Which {many} have a {words} {said} than {one}? Show the {what}.",
        f"Find the {what} of the {many} whose {said} is {words} than that of {one}.",
        f"Show the {what} of all {many} with {said} {words} than {one}.",
    )
    inner = f"SELECT {column.name} FROM {table.name} WHERE {label.name} = {literal(value)}"
    return QuestionCandidate(texts, f"SELECT {label.name} FROM {table.name} WHERE {column.name} {sign} ({inner})")


def in_children(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the parents whose key is among the children that meet a condition, or is not."""
    link = s.link()
    shown = s.shown(link.parent)
    where = s.condition(link.child)
    is_in = s.rng.random() < 0.55
    owners, things = s.many(link.parent), f"{s.many(link.child)} {where.words}"
    texts = (
        listing(s.say(shown), f"{owners} that have {s.one(('at least one of the', 'some of the'))} {things}")
        if is_in
        else listing(s.say(shown), f"{owners} that do not have any {things}")
    )
    inner = f"SELECT {link.key.column} FROM {link.child.name} WHERE {where.sql}"
    word = "IN" if is_in else "NOT IN"
    return QuestionCandidate(
        texts, f"SELECT {shown.name} FROM {link.parent.name} WHERE {link.key.target} {word} ({inner})"
    )


def without_children(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of, or count, the parents that have no child."""
    link = s.link()
    words = s.one(("that have no {}", "without any {}", "that do not have any {}", "with no {}"))
    things = f"{s.many(link.parent)} {words.format(s.many(link.child))}"
    inner = f"SELECT {link.key.column} FROM {link.child.name}"
    clause = f"FROM {link.parent.name} WHERE {link.key.target} NOT IN ({inner})"
    if s.rng.random() < 0.35:
        texts = (
            f"How many {things} are there?",
            f"Count the {things}.",
            f"Find the number of {things}.",
            f"What is the number of {things}?",
        )
        return QuestionCandidate(texts, f"SELECT COUNT(*) {clause}")
    shown = s.shown(link.parent)
    return QuestionCandidate(listing(s.say(shown), things), f"SELECT {shown.name} {clause}")


def _two_conditions(s: QuestionBuilder, table: Table, shown: Column) -> tuple[Condition, Condition]:
    first = s.condition(table, without=(shown,))
    second = s.condition(table, without=(shown, first.column))
    return first, second


def set_of_rows(s: QuestionBuilder) -> QuestionCandidate:
    """Combine two filters of one table by UNION, INTERSECT or EXCEPT on its label."""
    table = s.table(lambda table: table.label is not None)
    label = s.label(table)
    first, second = _two_conditions(s, table, label)
    many, what = s.many(table), label.words
    word = s.one(("UNION", "INTERSECT", "EXCEPT"))
    texts = {
        "UNION": (
            f"List the {what} of {many} {first.words}, together with those {second.words}.",
            f"Show the {what} of {many} {first.words} as well as of {many} {second.words}.",
            f"Find the {what} of {many} {first.words}, plus the ones {second.words}.",
            f"Combine the {what} of {many} {first.words} with the {what} of {many} {second.words}.",
        ),
        "INTERSECT": (
            f"List the {what} shared by {many} {first.words} and {many} {second.words}.",
            f"Which {what} appears both among {many} {first.words} and among {many} {second.words}?",
            f"Find the {what} common to {many} {first.words} and {many} {second.words}.",
            f"Show every {what} in both groups: {many} {first.words} and {many} {second.words}.",
        ),
        "EXCEPT": (
            f"List the {what} of {many} {first.words} except those {second.words}.",
            f"Show the {what} of {many} {first.words}, leaving out those {second.words}.",
            f"Find the {what} of {many} {first.words} but not those {second.words}.",
            f"Give the {what} of {many} {first.words}, excluding the ones {second.words}.",
        ),
    }[word]
    left = f"SELECT {label.name} FROM {table.name} WHERE {first.sql}"
    return QuestionCandidate(texts, f"{left} {word} SELECT {label.name} FROM {table.name} WHERE {second.sql}")


def parents_of_both(s: QuestionBuilder) -> QuestionCandidate:
    """Show the labels of parents that have children of one category and of another (or not of the other)."""
    link = s.link(_named)
    label = s.label(link.parent)
    column = s.column(link.child, ("category",))
    one = s.value(column)
    other = s.one([value for value in column.values if value not in (one, None)])
    word = s.one(("INTERSECT", "EXCEPT"))
    what, owners, many, said = label.words, s.many(link.parent), s.many(link.child), s.say(column)
    if word == "INTERSECT":
        texts = (
            f"List the {what} of {owners} that have both {many} with {said} {one} and {many} with {said} {other}.",
            f"Which {owners} have {many} with {said} {one} and also {many} with {said} {other}? Show the {what}.",
            f"Find the {what} shared by {owners} with {many} whose {said} is {one} and those whose {said} is {other}.",
            f"Show the {what} of {owners} having {many} of both {said} {one} and {said} {other}.",
        )
    else:
        texts = (
            f"List the {what} of {owners} that have {many} with {said} {one} but none with {said} {other}.",
            f"Which {owners} have {many} with {said} {one} but no {many} with {said} {other}? Show the {what}.",
            f"Find the {what} of {owners} with {many} whose {said} is {one}, except those with {said} {other}.",
            f"Show the {what} of {owners} having {many} with {said} {one} and none whose {said} is {other}.",
        )
    half = f"SELECT T2.{label.name} FROM {link.join} WHERE T1.{column.name} = "
    return QuestionCandidate(texts, f"{half}{literal(one)} {word} {half}{literal(other)}")


def average_count(s: QuestionBuilder) -> QuestionCandidate:
    """Average (or take the extreme of) the number of children a parent has, by a common table expression."""
    link = s.link()
    function, word = s.one((("AVG", "average"), ("MAX", "maximum"), ("MIN", "minimum")))
    many, parent = s.many(link.child), link.parent.singular
    texts = (
        f"What is the {word} number of {many} per {parent} that has any?",
        f"Find the {word} number of {many} a {parent} with at least one has.",
        f"Compute the {word} count of {many} per {parent}, ignoring those without any.",
        f"Show the {word} number of {many} for a {parent} that has any.",
    )
    inner = f"SELECT COUNT(*) AS n FROM {link.child.name} GROUP BY {link.key.column}"
    return QuestionCandidate(texts, f"WITH counts AS ({inner}) SELECT {function}(n) FROM counts")


def totals_above(s: QuestionBuilder) -> QuestionCandidate:
    """Count the parents whose total or average is above a value, or above the mean of all, by a CTE."""
    link = s.link()
    column = s.column(link.child, MEASURE)
    function, word = s.one((("SUM", "total"), ("MAX", "maximum")))
    owners, many, said = s.many(link.parent), s.many(link.child), s.say(column)
    texts = (
        f"How many {owners} have a {word} {said} of {many} above the average {word} {said}?",
        f"Count the {owners} whose {word} {said} of {many} is above the average of all {owners}.",
        f"Find the number of {owners} with a {word} {said} of {many} higher than the mean {word} {said}.",
        f"What is the number of {owners} whose {many} have a {word} {said} above the average {word}?",
    )
    inner = f"SELECT {function}({column.name}) AS n FROM {link.child.name} GROUP BY {link.key.column}"
    sql = f"WITH totals AS ({inner}) SELECT COUNT(*) FROM totals WHERE n > (SELECT AVG(n) FROM totals)"
    return QuestionCandidate(texts, sql)


def same_as_extreme_parent(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of, or count, the children of the parent at an extreme, by a nested query."""
    link = s.link()
    key = s.column(link.parent, SORTABLE)
    if key.has_nulls:
        raise NoFit
    is_highest = s.rng.random() < 0.5
    rank = (
        ("latest" if is_highest else "earliest")
        if key.kind in ("date", "year")
        else ("highest" if is_highest else "lowest")
    )
    owner = f"the {link.parent.singular} with the {rank} {s.say(key)}"
    many = s.many(link.child)
    rest = f"FROM {link.parent.name} ORDER BY {key.name} {'DESC' if is_highest else 'ASC'} LIMIT"
    clause = f"FROM {link.child.name} WHERE {link.key.column} = (SELECT {link.key.target} {rest} 1)"
    check = f"SELECT {key.name} {rest} 2"
    if s.rng.random() < 0.5:
        texts = (
            f"How many {many} belong to {owner}?",
            f"Count the {many} of {owner}.",
            f"Find the number of {many} of {owner}.",
            f"What is the number of {many} linked to {owner}?",
        )
        return QuestionCandidate(texts, f"SELECT COUNT(*) {clause}", check)
    shown = s.shown(link.child)
    return QuestionCandidate(listing(s.say(shown), f"{many} of {owner}"), f"SELECT {shown.name} {clause}", check)


EXTRA = (
    (above_average, 3),
    (above_group_average, 2),
    (at_extreme, 1),
    (above_one_row, 2),
    (in_children, 3),
    (without_children, 2),
    (set_of_rows, 3),
    (parents_of_both, 2),
    (average_count, 2),
    (totals_above, 2),
    (same_as_extreme_parent, 2),
)
