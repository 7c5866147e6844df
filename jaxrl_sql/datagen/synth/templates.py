"""Question templates: steps that choose the parts of a question, its wordings, and its SQL.

`== name weight: step; step` opens a template. The steps are methods of `QuestionBuilder`; each chooses a part, such
as `table`. Its words replace `{table}` in the wordings, and its SQL replaces it in the query. The lines below are:

- `part: option | option`: the options of the step `one part`, each `SQL as words`, or one text for both. A part with a
  single option needs no step. `part [CHOICE]: ...` applies if a step made this choice (`QuestionBuilder.choices`).
- Wordings. Those below `[CHOICE]` apply if a step made this choice. Templates without wordings use LISTING, COUNTING or
  AGGREGATING of `question_template.py`, with the part `things`.
- The query, and the checks `order_check` and `sort_check`, which find ambiguous golds (see `QuestionCandidate`).

These steps occur often:

- `say PART ...` chooses the words of tables, columns or orders: a name or a synonym. Tables and columns
  have no words without it.
- `known PART` rejects a database in which the column of this part has NULLs.
- `where` chooses a condition. A second `where` makes the part `{where2}`; a second `shown` extends the part `{shown}`.
- `order SHARE` sorts in descending order with this probability, else ascending. `filter SHARE` adds a condition, and
  `count_or_show SHARE` asks for the number of rows, each with this probability. `k LOW HIGH` chooses a LIMIT, both
  ends inclusive.
- `pattern` makes a part named `part`: the letter or word in the question, and its LIKE pattern in the query.

The weight is the relative frequency of a template among those of its difficulty. `{next}` is `{k}` + 1.
"""

EASY = """
== list_filtered 4: table; shown; where; say shown table
things: {table} {where}
SELECT {shown} FROM {table} WHERE {where}

== list_two_columns 3: table; shown; shown; where; say shown table
things: {table} {where}
SELECT {shown} FROM {table} WHERE {where}

== count_all 1: table; say table
How many {table} are there?
Count the {table}.
What is the number of {table}?
Give the total number of {table}.
How many {table} do we have in total?
SELECT COUNT(*) FROM {table}

== count_filtered 4: table; where; say table
How many {table} {where} are there?
Count the {table} {where}.
What is the number of {table} {where}?
Find the number of {table} {where}.
How many {table} {where} exist?
SELECT COUNT(*) FROM {table} WHERE {where}

== aggregate_all 3: table sortable; aggregate sortable; say table
things: all {table}
SELECT {aggregate} FROM {table}

== aggregate_filtered 3: table measure; aggregate measure; where; say table
things: {table} {where}
SELECT {aggregate} FROM {table} WHERE {where}

== look_up 3: table label; label; shown; value label; say shown
What is the {shown} of the {singular} whose {label} is {value}?
Show the {shown} of the {singular} with {label} {value}.
Find the {shown} for the {singular} whose {label} is {value}.
Which {shown} does the {singular} with {label} {value} have?
Give the {shown} of the {singular} with the {label} {value}.
SELECT {shown} FROM {table} WHERE {label} = {value}

== list_both 2: table; shown; where; where; say shown table
things: {table} {where} and {where2}
SELECT {shown} FROM {table} WHERE {where} AND {where2}

== count_either 1: table category; column category; value; other; say table column
How many {table} have {column} {value} or {other}?
Count the {table} whose {column} is {value} or {other}.
What is the number of {table} with {column} {value} or {other}?
Find the number of {table} where the {column} is either {value} or {other}.
SELECT COUNT(*) FROM {table} WHERE {column} = {value} OR {column} = {other}

== two_aggregates 1: table numeric; column numeric; say table column
What are the minimum and maximum {column} of {table}?
Show the minimum and the maximum {column} of all {table}.
Find the lowest and highest {column} among {table}.
Give the smallest and largest {column} of the {table}.
SELECT MIN({column}), MAX({column}) FROM {table}

== list_all 1: table; shown; shown; say shown table
things: {table}
SELECT {shown} FROM {table}
"""

MEDIUM = """
== ordered 2: table sortable; column sortable; shown; order 0.5; say shown table column way
List the {shown} of all {table} in {way} order of {column}.
Show the {shown} of {table} sorted by {column} in {way} order.
What is the {shown} of every one of the {table}, ordered by {column} {way}?
Give the {shown} of {table} ordered by {way} {column}.
Sort the {table} by {column} in {way} order and show the {shown}.
SELECT {shown} FROM {table} ORDER BY {column} {way}
sort_check: SELECT {column}, {shown} FROM {table}

== ordered_filtered 2: table sortable; column sortable; shown; where; order 0.5; say shown table column
List the {shown} of {table} {where}, in {way} order of {column}.
Show the {shown} of {table} {where}, sorted by {column} in {way} order.
What is the {shown} of {table} {where}, ordered by {way} {column}?
Find the {shown} of the {table} {where} and sort them by {column} in {way} order.
SELECT {shown} FROM {table} WHERE {where} ORDER BY {column} {way}
sort_check: SELECT {column}, {shown} FROM {table} WHERE {where}

== top_k 3: table sortable; column sortable; shown; order 0.6; k 2 6; say shown table column rank
List the {shown} of the {k} {table} with the {rank} {column}.
What is the {shown} of the top {k} {table} with the {rank} {column}?
Show the {shown} of the {k} {table} that have the {rank} {column}.
Which {k} {table} have the {rank} {column}? Give the {shown}.
Find the {k} {table} with the {rank} {column} and show the {shown}.
SELECT {shown} FROM {table} ORDER BY {column} {way} LIMIT {k}
order_check: SELECT {column} FROM {table} ORDER BY {column} {way} LIMIT {next}

== superlative 3: table sortable; column sortable; shown; order 0.6; say shown column rank
What is the {shown} of the {singular} with the {rank} {column}?
Find the {shown} of the {singular} that has the {rank} {column}.
Which {singular} has the {rank} {column}? Show the {shown}.
Show the {shown} of the {singular} with the {rank} {column}.
Give the {shown} for the {singular} whose {column} is the {rank}.
SELECT {shown} FROM {table} ORDER BY {column} {way} LIMIT 1
order_check: SELECT {column} FROM {table} ORDER BY {column} {way} LIMIT 2

== superlative_filtered 2: table sortable; column sortable; shown; where; order 0.6; say shown column rank table
Among {table} {where}, what is the {shown} of the one with the {rank} {column}?
Of all {table} {where}, show the {shown} of the one with the {rank} {column}.
Find the {shown} of the one with the {rank} {column} among the {table} {where}.
Considering only {table} {where}, which one has the {rank} {column}? Give the {shown}.
SELECT {shown} FROM {table} WHERE {where} ORDER BY {column} {way} LIMIT 1
order_check: SELECT {column} FROM {table} WHERE {where} ORDER BY {column} {way} LIMIT 2

== distinct_values 2: table repeated; column repeated; filter 0.5; say table column
What are the different {column} values of {table}{filter}?
List the distinct {column} of {table}{filter}.
Show all the different {column} values found among {table}{filter}.
Find the unique {column} values of the {table}{filter}.
Give every {column} of {table}{filter} without repetition.
SELECT DISTINCT {column} FROM {table}{filter}

== count_distinct 1: table repeated; column repeated; say table column
How many different {column} values do {table} have?
Count the distinct {column} of {table}.
What is the number of different {column} values among {table}?
Find the number of unique {column} values of the {table}.
SELECT COUNT(DISTINCT {column}) FROM {table}

== between 3: table sortable; column sortable; bounds; say column; one phrase; say table; count_or_show 0.4
phrase: whose {column} is between {low} and {high} | with {column} between {low} and {high}
    | with a {column} from {low} to {high}
things: {table} {phrase}
SELECT {shown} FROM {table} WHERE {column} BETWEEN {low} AND {high}

== like 2: table text; column text; value; say column; pattern; one phrase; say table; count_or_show 0.4
phrase [start]: whose {column} starts with {part} | with a {column} that begins with {part}
    | whose {column} begins with the letter {part}
phrase [word]: whose {column} contains {part} | with a {column} that contains {part}
    | whose {column} includes the word {part}
things: {table} {phrase}
SELECT {shown} FROM {table} WHERE {column} LIKE {part}

== null_test 2: table nullable; column nullable; either 0.6 NULL NOT_NULL; say column; one phrase; say table;
    count_or_show 0.5
phrase [NULL]: without a {column} | whose {column} is missing | that have no {column} | whose {column} is unknown
phrase [NOT NULL]: that have a {column} | whose {column} is known | whose {column} is not missing
    | with a known {column}
things: {table} {phrase}
SELECT {shown} FROM {table} WHERE {column} IS {either}

== unequal 2: table category; column category; shown; value; one phrase; say table column shown
phrase: whose {column} is not {value} | with a {column} other than {value}
    | where the {column} is different from {value}
things: {table} {phrase}
SELECT {shown} FROM {table} WHERE {column} != {value}

== count_by_category 2: table category; group category; say table group
How many {table} are there for each {group}?
Count the {table} of each {group}.
For each {group}, show the number of {table}.
Show each {group} and the number of {table} with it.
List every {group} together with how many {table} have it.
SELECT {group}, COUNT(*) FROM {table} GROUP BY {group}

== aggregate_by_category 2: table grouped; group category; aggregate measure; say table group
What is the {aggregate} of {table} for each {group}?
For each {group}, show the {aggregate} of {table}.
Show each {group} and the {aggregate} of its {table}.
Find the {aggregate} of {table} per {group}.
Give every {group} with the {aggregate} of the {table}.
SELECT {group}, {aggregate} FROM {table} GROUP BY {group}
"""

HARD = """
== children_of 4: join; shown child; owner; say shown child
List the {shown} of the {child} of {owner}.
What is the {shown} of {child} that belong to {owner}?
Show the {shown} of all {child} linked to {owner}.
Find the {shown} of every one of the {child} belonging to {owner}.
For {owner}, show the {shown} of the {child}.
SELECT {shown} FROM {join} WHERE {owner}

== count_children_of 3: join; owner; say child
How many {child} belong to {owner}?
Count the {child} of {owner}.
What is the number of {child} linked to {owner}?
Find the number of {child} that belong to {owner}.
How many {child} are there for {owner}?
SELECT COUNT(*) FROM {join} WHERE {owner}

== aggregate_children_of 3: join; aggregate measure child; owner; say child
What is the {aggregate} of the {child} of {owner}?
Find the {aggregate} of {child} that belong to {owner}.
Show the {aggregate} of all {child} linked to {owner}.
Give the {aggregate} over the {child} belonging to {owner}.
SELECT {aggregate} FROM {join} WHERE {owner}

== both_sides 3: join label; shown child; label parent; where child; say shown child
List the {shown} and the {label} of the {singular} for {child} {where}.
Show the {shown} of {child} {where}, along with the {label} of the {singular}.
What is the {shown} and the {label} of the {singular} for all {child} {where}?
For {child} {where}, give the {shown} and the {label} of the {singular}.
Find the {shown} together with the {label} of the {singular} for {child} {where}.
SELECT {shown}, {label} FROM {join} WHERE {where}

== parents_with 2: join label; label parent; where child; say parent child
List the distinct {label} of {parent} that have {child} {where}.
What are the different {label} values of {parent} having {child} {where}?
Show the distinct {label} of the {parent} linked to {child} {where}.
Find the unique {label} of all {parent} with any {child} {where}.
SELECT DISTINCT {label} FROM {join} WHERE {where}

== count_per_parent 3: join label; label parent; say child
How many {child} does each {singular} have? Show the {label} and the count.
For each {singular}, show the {label} and the number of {child}.
Show the {label} of each {singular} and the number of its {child}.
List the {label} of every {singular} together with the number of {child}.
Count the {child} of each {singular} and give its {label}.
SELECT {label}, COUNT(*) FROM {join} GROUP BY {id}

== aggregate_per_parent 3: join label; label parent; aggregate measure child; say child
For each {singular}, show the {label} and the {aggregate} of the {child}.
What is the {aggregate} of {child} for each {singular}? Show the {label} too.
Show the {label} of each {singular} and the {aggregate} of its {child}.
List the {label} of every {singular} with the {aggregate} of its {child}.
SELECT {label}, {aggregate} FROM {join} GROUP BY {id}

== aggregate_per_parent_category 2: join; group category parent; count_or_aggregate 0.5 measure child; say child group
For each {group} of the {singular}, show the {aggregate} of {child}.
What is the {aggregate} of {child} for each {singular} {group}?
Show each {singular} {group} and the {aggregate} of {child}.
Find the {aggregate} of {child} per {group} of the {singular}.
SELECT {group}, {aggregate} FROM {join} GROUP BY {group}

== having_count 3: join label; label parent; k_children; one relation; say parent child
relation: >= as at least {k} | > as more than {k} | >= as {k} or more | = as exactly {k}
List the {label} of {parent} with {relation} {child}.
What is the {label} of the {parent} that have {relation} {child}?
Which {parent} have {relation} {child}? Show the {label}.
Find the {label} of all {parent} having {relation} {child}.
Show the {label} of every {singular} with {relation} {child}.
SELECT {label} FROM {join} GROUP BY {id} HAVING COUNT(*) {relation} {k}

== most_children 1: join label; label parent; say child
Which {singular} has the most {child}? Show the {label}.
What is the {label} of the {singular} with the most {child}?
Find the {label} of the {singular} that has the largest number of {child}.
Show the {label} of the {singular} with the highest number of {child}.
SELECT {label} FROM {join} GROUP BY {id} ORDER BY COUNT(*) DESC LIMIT 1
order_check: SELECT COUNT(*) FROM {join} GROUP BY {id} ORDER BY COUNT(*) DESC LIMIT 2

== top_parents_by_sum 2: join label; label parent; column measure child; one function; say column; k 1 4;
    say child parent
function: SUM as total | AVG as average
[one]
Which {singular} has the highest {function} {column} of {child}? Show the {label}.
What is the {label} of the {singular} with the highest {function} {column} of its {child}?
Find the {label} of the {singular} whose {child} have the highest {function} {column}.
Show the {label} of the {singular} with the largest {function} {column} over its {child}.
[several]
Which {k} {parent} have the highest {function} {column} of {child}? Show the {label}.
What is the {label} of the {k} {parent} with the highest {function} {column} of their {child}?
Find the {label} of the top {k} {parent} whose {child} have the highest {function} {column}.
Show the {label} of the {k} {parent} with the largest {function} {column} over their {child}.
SELECT {label} FROM {join} GROUP BY {id} ORDER BY {function}({column}) DESC LIMIT {k}
order_check: SELECT {function}({column}) FROM {join} GROUP BY {id} ORDER BY {function}({column}) DESC LIMIT {next}

== having_average 2: table category; group category; column measure; middle; one relation; say group column table
relation: > as above | > as greater than | < as below | < as less than
Which {group} values have an average {column} {relation} {middle} among {table}?
List each {group} of {table} whose average {column} is {relation} {middle}.
Show the {group} of {table} with an average {column} {relation} {middle}.
Find every {group} for which the average {column} of the {table} is {relation} {middle}.
SELECT {group} FROM {table} GROUP BY {group} HAVING AVG({column}) {relation} {middle}

== most_common 1: table category; group category; known group; one rank; say group table
rank: DESC as most | DESC as most | ASC as least
What is the {rank} common {group} among {table}?
Find the {rank} common {group} of all {table}.
Which {group} is the {rank} common among the {table}?
Show the {rank} frequent {group} of {table}.
SELECT {group} FROM {table} GROUP BY {group} ORDER BY COUNT(*) {rank} LIMIT 1
order_check: SELECT COUNT(*) FROM {table} GROUP BY {group} ORDER BY COUNT(*) {rank} LIMIT 2

== over_two_joins 2: join chained; grandparent; label top; value label; say child parent; count_or_show 0.5 child
owner: the {singular} whose {label} is {value}
things: {child} of the {parent} of {owner}
[count]
How many {child} belong to {parent} of {owner}?
Count the {child} of the {parent} that belong to {owner}.
Find the number of {child} of {parent} linked to {owner}.
What is the number of {child} for the {parent} of {owner}?
SELECT {shown} FROM {join} WHERE {label} = {value}
"""

EXTRA = """
== above_average 3: table measure; column measure; one relation; say column; one phrase; say table; count_or_show 0.4
relation: > as above | > as higher than | < as below | < as lower than
phrase: whose {column} is {relation} the average {column} | with {column} {relation} the average
    | whose {column} is {relation} average
things: {table} {phrase}
SELECT {shown} FROM {table} WHERE {column} {relation} (SELECT AVG({column}) FROM {table})

== above_group_average 2: table measure; column measure; shown; where; one function; say column table; one phrase;
    say shown
function: AVG as average | AVG as average | MAX as highest
phrase: whose {column} is greater than the | with {column} above the | whose {column} exceeds the
    | with a higher {column} than the
things: {table} {phrase} {function} {column} of {table} {where}
SELECT {shown} FROM {table} WHERE {column} > (SELECT {function}({column}) FROM {table} WHERE {where})

== at_extreme 1: table sortable; column sortable; shown; one function; say shown table column
function: MAX as maximum | MIN as minimum
List the {shown} of all {table} whose {column} equals the {function} {column}.
Show the {shown} of every one of the {table} that has the {function} {column}.
What is the {shown} of all {table} with {column} equal to the {function}?
Find the {shown} of {table} whose {column} is the {function} {column}.
SELECT {shown} FROM {table} WHERE {column} = (SELECT {function}({column}) FROM {table})

== above_one_row 2: table label; label; column sortable; value label; kind; one relation; say table column
relation [number]: > as higher | < as lower
relation [time]: > as later | < as earlier
List the {label} of {table} with a {relation} {column} than the {singular} with {label} {value}.
Which {table} have a {relation} {column} than the {singular} with {label} {value}? Show the {label}.
Find the {label} of the {table} whose {column} is {relation} than that of the {singular} with {label} {value}.
Show the {label} of all {table} with {column} {relation} than the {singular} with {label} {value}.
SELECT {label} FROM {table} WHERE {column} {relation} (SELECT {column} FROM {table} WHERE {label} = {value})

== in_children 3: link; shown parent; where child; either 0.55 IN NOT_IN; say parent child shown; one phrase
phrase [IN]: have at least one of the | have some of the
phrase [NOT IN]: do not have any
things: {parent} that {phrase} {child} {where}
SELECT {shown} FROM {parent} WHERE {target} {either} (SELECT {reference} FROM {child} WHERE {where})

== without_children 2: link; one phrase; say parent child; count_or_show 0.35 parent
phrase: that have no | without any | that do not have any | with no
things: {parent} {phrase} {child}
SELECT {shown} FROM {parent} WHERE {target} NOT IN (SELECT {reference} FROM {child})

== set_of_rows 3: table label; label; where; where; say table; one set
set: UNION | INTERSECT | EXCEPT
[UNION]
List the {label} of {table} {where}, together with those {where2}.
Show the {label} of {table} {where} as well as of {table} {where2}.
Find the {label} of {table} {where}, plus the ones {where2}.
Combine the {label} of {table} {where} with the {label} of {table} {where2}.
[INTERSECT]
List the {label} shared by {table} {where} and {table} {where2}.
Which {label} appears both among {table} {where} and among {table} {where2}?
Find the {label} common to {table} {where} and {table} {where2}.
Show every {label} in both groups: {table} {where} and {table} {where2}.
[EXCEPT]
List the {label} of {table} {where} except those {where2}.
Show the {label} of {table} {where}, leaving out those {where2}.
Find the {label} of {table} {where} but not those {where2}.
Give the {label} of {table} {where}, excluding the ones {where2}.
SELECT {label} FROM {table} WHERE {where} {set} SELECT {label} FROM {table} WHERE {where2}

== parents_of_both 2: join label; label parent; column category child; value; other; one set; say parent child column
set: INTERSECT | EXCEPT
[INTERSECT]
List the {label} of {parent} that have both {child} with {column} {value} and {child} with {column} {other}.
Which {parent} have {child} with {column} {value} and also {child} with {column} {other}? Show the {label}.
Find the {label} shared by {parent} with {child} whose {column} is {value} and those whose {column} is {other}.
Show the {label} of {parent} having {child} of both {column} {value} and {column} {other}.
[EXCEPT]
List the {label} of {parent} that have {child} with {column} {value} but none with {column} {other}.
Which {parent} have {child} with {column} {value} but no {child} with {column} {other}? Show the {label}.
Find the {label} of {parent} with {child} whose {column} is {value}, except those with {column} {other}.
Show the {label} of {parent} having {child} with {column} {value} and none whose {column} is {other}.
SELECT {label} FROM {join} WHERE {column} = {value} {set} SELECT {label} FROM {join} WHERE {column} = {other}

== average_count 2: link; one function; say child
function: AVG as average | MAX as maximum | MIN as minimum
What is the {function} number of {child} per {singular} that has any?
Find the {function} number of {child} a {singular} with at least one has.
Compute the {function} count of {child} per {singular}, ignoring those without any.
Show the {function} number of {child} for a {singular} that has any.
WITH counts AS (SELECT COUNT(*) AS n FROM {child} GROUP BY {reference}) SELECT {function}(n) FROM counts

== totals_above 2: link; column measure child; one function; say parent child column
function: SUM as total | MAX as maximum
How many {parent} have a {function} {column} of {child} above the average {function} {column}?
Count the {parent} whose {function} {column} of {child} is above the average of all {parent}.
Find the number of {parent} with a {function} {column} of {child} higher than the mean {function} {column}.
What is the number of {parent} whose {child} have a {function} {column} above the average {function}?
WITH totals AS (SELECT {function}({column}) AS n FROM {child} GROUP BY {reference})
    SELECT COUNT(*) FROM totals WHERE n > (SELECT AVG(n) FROM totals)

== same_as_extreme_parent 2: link; column sortable parent; known column; order 0.5; say column child;
    count_or_show 0.5 child
owner: the {singular} with the {rank} {column}
things: {child} of {owner}
[count]
How many {child} belong to {owner}?
Count the {child} of {owner}.
Find the number of {child} of {owner}.
What is the number of {child} linked to {owner}?
SELECT {shown} FROM {child}
    WHERE {reference} = (SELECT {target} FROM {parent} ORDER BY {column} {way} LIMIT 1)
order_check: SELECT {column} FROM {parent} ORDER BY {column} {way} LIMIT 2
"""
