"""Templates of the difficulty `advanced`, in the notation of `templates.py`: SQL features absent from Spider's golds.

The features are CASE, CAST, dates, arithmetic, window functions and outer joins, as in BIRD, Archer and Spider 2.0.
`templates.py` explains the steps, such as `known`, `say` and `filter 0.5` (a probability).
"""

ADVANCED = """
== count_if 2: table category; column category; known column; value; say table column
How many {table} have the {column} {value}, and how many do not?
Count the {table} whose {column} is {value}, and count the others beside them.
What is the number of {table} with the {column} {value}, and that of all others?
Show in one row how many {table} have the {column} {value} and how many have another one.
SELECT SUM(CASE WHEN {column} = {value} THEN 1 ELSE 0 END), SUM(CASE WHEN {column} = {value} THEN 0 ELSE 1 END)
    FROM {table}

== percentage 3: table category; column category; value; say table column
What percentage of {table} have the {column} {value}?
Of all {table}, what per cent have {value} as their {column}?
Calculate the percentage of {table} whose {column} is {value}.
How many per cent of the {table} have the {column} {value}?
SELECT CAST(SUM(CASE WHEN {column} = {value} THEN 1 ELSE 0 END) AS REAL) * 100 / COUNT(*) FROM {table}

== bands 2: table measure; label; column measure; known column; middle; say table column
Show the {label} of each {singular}, and 'high' if the {column} is above {middle}, else 'low'.
List every {label} of {table} with the word 'high' where the {column} exceeds {middle} and 'low' elsewhere.
For each {singular}, give the {label} and whether the {column} is 'high' (more than {middle}) or 'low'.
Mark each {singular} as 'high' if it has a {column} above {middle} and as 'low' otherwise; show the {label} first.
SELECT {label}, CASE WHEN {column} > {middle} THEN 'high' ELSE 'low' END FROM {table}

== spread 2: table measure; column measure; filter 0.5; say table column
What is the difference between the highest and the lowest {column} of {table}{filter}?
By how much does the highest {column} of {table}{filter} exceed the lowest?
Subtract the smallest {column} of {table}{filter} from the largest.
Find the gap between the maximum and the minimum {column} among {table}{filter}.
SELECT MAX({column}) - MIN({column}) FROM {table}{filter}

== from_average 2: table measure; label; column measure; known column; say table column
How far is the {column} of each {singular} from the average of all? Show the {label} and the difference.
For each {singular}, show the {label} and the {column} minus the average {column}.
List the {label} of {table} and by how much the {column} lies above the average {column}.
Show the {label} of every {singular}, and how much more than the average the {column} is.
SELECT {label}, {column} - (SELECT AVG({column}) FROM {table}) FROM {table}

== ratio 1: table measure; column measure; known column; say table column
How many times the average {column} is the highest {column} of {table}?
Divide the highest {column} of {table} by the average one.
What is the ratio of the maximum to the average {column} of {table}?
Find the highest {column} of {table} as a multiple of their average {column}.
SELECT MAX({column}) / AVG({column}) FROM {table}

== by_year 3: table date; column date; known column; say table column
How many {table} are there for each year of the {column}?
Count the {table} by the year of their {column}.
For each year of the {column}, show the year and the number of {table}.
Show the years of the {column} and how many {table} fall into each.
SELECT STRFTIME('%Y', {column}), COUNT(*) FROM {table} GROUP BY STRFTIME('%Y', {column})

== in_month 2: table date; column date; month; say column table; count_or_show 0.5
things: {table} whose {column} is in {month}
SELECT {shown} FROM {table} WHERE STRFTIME('%m', {column}) = {month}

== days_between 1: table date; column date; filter 0.4; say table column
How many days lie between the earliest and the latest {column} of {table}{filter}?
What is the number of days from the first to the last {column} of {table}{filter}?
Find how many days the {column} of {table}{filter} spans.
Count the days between the first and the last {column} among {table}{filter}.
SELECT CAST(JULIANDAY(MAX({column})) - JULIANDAY(MIN({column})) AS INTEGER) FROM {table}{filter}

== rank 2: table sortable; label; column sortable; known column; order 0.6; say table column rank
Rank the {table} by {column}, the {rank} first; show the {label} and the rank.
Show the {label} and the rank of each {singular} by {column}, where rank 1 has the {rank} one.
Give each {singular} its place by {column}, beginning with the {rank}, and show the {label} before it.
List the {label} of {table} with their ranks, 1 for the {rank} {column}.
SELECT {label}, RANK() OVER (ORDER BY {column} {way}) FROM {table}

== best_of_group 3: table category; label; group category; column sortable; known column; order 0.6;
    say group column rank table
For each {group}, show the {group} and the {label} of the {table} with the {rank} {column} in it.
Which {table} have the {rank} {column} within their {group}? Show the {group} and the {label}.
Show each {group} with the {label} of those {table} that have the {rank} {column} there.
Find the {table} with the {rank} {column} of each {group}; give the {group} and the {label}.
SELECT {group}, {label} FROM (SELECT {group}, {label}, RANK() OVER (PARTITION BY {group} ORDER BY {column} {way})
    AS place FROM {table}) WHERE place = 1

== beside_group 1: table category; label; group category; column measure; known column; say group column table
Show the {label} and the {column} of each {singular}, and the average {column} of its {group}.
For all {table}, list the {label}, the {column} and the average {column} of the same {group}.
Give the {label} of every {singular}, its {column} and beside it the average of its {group}.
List {label} and {column} of the {table} together with the average {column} by {group}.
SELECT {label}, {column}, AVG({column}) OVER (PARTITION BY {group}) FROM {table}

== count_all_parents 3: link label; label parent; say child parent
How many {child} does each {singular} have, those without any included? Show the {label} first.
Show the {label} of every {singular} and the number of its {child}, 0 where it has none.
Count the {child} of all {parent}, even of those that have none, and show the {label} with the count.
List all {parent} by {label} with how many {child} they have, which may be 0.
SELECT T1.{label}, COUNT(T2.{reference}) FROM {parent} AS T1 LEFT JOIN {child} AS T2 ON T1.{target} = T2.{reference}
    GROUP BY T1.{target}

== parents_alone 2: link label; label parent; say child parent
Which {parent} have no {child} at all? Show the {label}.
List the {label} of {parent} to which no {child} belong.
Find the {label} of every {singular} without a single one of the {child}.
Show the {label} of all {parent} for which there are no {child}.
SELECT T1.{label} FROM {parent} AS T1 LEFT JOIN {child} AS T2 ON T1.{target} = T2.{reference}
    WHERE T2.{reference} IS NULL
"""
