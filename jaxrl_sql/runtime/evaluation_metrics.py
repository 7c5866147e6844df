"""The metrics that `evaluate` and `verbal` write to `metrics.json` and `speed.json`, as rows of `metric_row.Metric`.

A rule decides whether a prediction's result matches that of the gold, the reference SQL (docs/reference/rules.md).
`docs/reference/metrics.md` is written from these rows.
"""

from __future__ import annotations

from jaxrl_sql.runtime.metric_row import Metric, MetricTable

ALWAYS = "always"
SAMPLES = "`evaluate.samples` above 1"
DIALOGUE = "answers of several turns"
SETS = "several sets"
UNANSWERABLE = "sets with questions that have no answer"
VERBAL = "`verbal`"
"""Values of `Metric.when`: where a metric is written."""

EVALUATION = (
    MetricTable(
        "Accuracy",
        "Shares are over questions with a score: the gold ran and the database could be read.",
        (
            Metric("accuracy", "share", "mean score by the set's own rule", "The benchmark's number.", ALWAYS),
            Metric(
                "<rule>", "share", "mean score by the rule",
                "Rules differ in order, duplicates and columns: compare runs by one rule. `suite` is test-suite "
                "accuracy, `test_suite` has the same comparison on one database.",
                ALWAYS,
            ),
            Metric(
                "<rule>/low", "share", "lower bound of the 95 % interval, questions clustered by database",
                "Differences within the interval are noise; `jaxrl-sql evaluate --compare` pairs the questions.",
                ALWAYS,
            ),
            Metric("<rule>/high", "share", "upper bound of the 95 % interval", "", ALWAYS),
            Metric("<rule>/count", "questions", "questions that the rule scored", "", ALWAYS),
            Metric(
                "<rule>/hardness/<level>", "share", "mean score of the difficulty",
                "The set's labels, or Spider's levels from the gold.", ALWAYS,
            ),
            Metric("<rule>/database/<name>", "share", "mean score of the database", "", ALWAYS),
            Metric("<rule>/feature/<name>", "share", "mean score of golds with the SQL feature", "", ALWAYS),
            Metric("count/hardness/<level>", "questions", "questions of the difficulty", "", ALWAYS),
            Metric("count/database/<name>", "questions", "questions of the database", "", ALWAYS),
            Metric("count/feature/<name>", "questions", "questions with the SQL feature", "", ALWAYS),
            Metric(
                "accuracy/with_missing", "share", "sum of scores / (scored + missing)",
                "As leaderboards count questions without a prediction.", "missing predictions",
            ),
            Metric("accuracy/std", "share", "sample standard deviation over runs", "", "`evaluate.runs` above 1"),
            Metric("<rule>/std", "share", "the same by the rule", "", "`evaluate.runs` above 1"),
            Metric(
                "runs", "runs", "`evaluate.runs`", "Other numbers are means over the runs.", "`evaluate.runs` above 1",
            ),
            Metric("macro/accuracy", "share", "mean over sets, each with equal weight", "", SETS),
            Metric("macro/<rule>", "share", "the same by the rule", "", SETS),
            Metric("<set>/<metric>", "", "the metric of one set", "Without the set: the mean weighted by size.", SETS),
        ),
    ),
    MetricTable(
        "Counts",
        "",
        (
            Metric("count", "questions", "questions of the set", "", ALWAYS),
            Metric("valid", "share", "predictions that run / questions", "At least the accuracy.", ALWAYS),
            Metric("status/<status>", "questions", "predictions with the status", "", ALWAYS),
            Metric(
                "gold_status/<status>", "questions", "golds with the status", "Other than `ok`: check the data.",
                ALWAYS,
            ),
            Metric("gold_failures", "questions", "golds that did not run", "Their questions have no score.", ALWAYS),
            Metric(
                "gold_timeouts", "questions", "golds that a limit stopped", "Raise the limit of `executor`.", ALWAYS,
            ),
            Metric("suite_gold_failures", "questions", "golds that failed on a database of the test suite", "", ALWAYS),
            Metric(
                "stopped_by_clock", "questions", "predictions that the wall clock stopped",
                "If not 0, results depend on the load of the machine.", ALWAYS,
            ),
            Metric("unjudged", "questions", "predictions without a verdict", "If not 0, the database failed.", ALWAYS),
            Metric("missing", "questions", "questions without a prediction", "", ALWAYS),
            Metric("extra", "predictions", "predictions for no question of the set", "", ALWAYS),
            Metric("left_out", "questions", "questions excluded because no gold or database is usable", "", ALWAYS),
            Metric(
                "sensitive/<reason>", "questions", "questions on whose verdict the rules differ, by reason",
                "If many, report the rule with the accuracy.", ALWAYS,
            ),
            Metric(
                "truncated", "share", "answers truncated at a token limit / answers",
                "Above 0.02: raise `evaluate.sampling.max_new_tokens`.", "answers of a model",
            ),
            Metric("finish_reason/<reason>", "answers", "answers that ended in this way", "", "answers of a model"),
        ),
    ),
    MetricTable(
        "Samples and dialogues",
        "",
        (
            Metric(
                "vote/<k>", "share", "mean score of the vote (`evaluate.vote`) among k samples, by the set's own rule",
                "k is 1, 2, 4, … and `evaluate.samples`, where it is `accuracy`.", SAMPLES,
            ),
            Metric(
                "pass/<k>", "share",
                "1 − C(n − c, k) / C(n, k), mean over questions (Chen et al. 2021, arXiv:2107.03374)",
                "The accuracy of a perfect choice among k samples.", SAMPLES,
            ),
            Metric("<rule>/turns/<n>", "share", "mean score of dialogues of n turns", "", DIALOGUE),
            Metric("count/turns/<n>", "questions", "dialogues of n turns", "", DIALOGUE),
            Metric("turns/mean", "turns", "turns / dialogues", "", DIALOGUE),
            Metric("dialogue/queries", "queries", "queries / dialogues", "", DIALOGUE),
            Metric("dialogue/lookups", "queries", "queries of the schema / dialogues", "", DIALOGUE),
            Metric(
                "dialogue/repeated", "queries", "queries that the dialogue ran before / dialogues", "Wasted turns.",
                DIALOGUE,
            ),
            Metric("dialogue/unprobed", "share", "solutions never run as a query / dialogues", "", DIALOGUE),
            Metric("dialogue/unsolved", "share", "dialogues without a solution / dialogues", "", DIALOGUE),
        ),
    ),
    MetricTable(
        "Abstention",
        "EHRSQL's scores: a question may have no answer in the database.",
        (
            Metric(
                "reliability/<cost>", "score", "(right − cost × wrong) / questions (Lee et al. 2024, RS(c))",
                "Below 0 at cost N a system that never answers is better.", UNANSWERABLE,
            ),
            Metric(
                "abstention/<name>", "share",
                "precision, recall and F1 of answering and of right answers (Lee et al. 2022)", "", UNANSWERABLE,
            ),
        ),
    ),
    MetricTable(
        "Choices of verbal RL",
        "In `verbal`, the metrics of the tables above are those of the chosen candidates.",
        (
            Metric("first/<rule>", "share", "mean score of the first candidate", "The baseline.", VERBAL),
            Metric("majority/<rule>", "share", "mean score of the vote", "", VERBAL),
            Metric(
                "best/<rule>", "share", "mean over questions of the best candidate's score", "The upper bound.", VERBAL,
            ),
            Metric("gain/<rule>", "share", "chosen − first, paired", "A gain only where `low` is above 0.", VERBAL),
            Metric("gain/<rule>/low", "share", "lower bound of the 95 % interval", "", VERBAL),
            Metric("gain/<rule>/high", "share", "upper bound of the 95 % interval", "", VERBAL),
            Metric("attempts", "answers", "answers requested", "", VERBAL),
            Metric("unanswered", "answers", "attempts that the endpoint did not answer", "", VERBAL),
            Metric("without_sql", "answers", "answers without SQL", "", VERBAL),
            Metric("failed", "answers", "answers whose SQL fails", "", VERBAL),
            Metric("empty", "answers", "answers whose SQL returns no row", "", VERBAL),
            Metric("candidates", "answers", "distinct candidates", "", VERBAL),
            Metric("replies", "replies", "scores that the judge wrote", "", VERBAL),
            Metric(
                "unread", "replies", "replies of the judge that cannot be parsed",
                "If many, raise `verbal.judge_max_tokens`, or use another judge.", VERBAL,
            ),
            Metric("truncated/judge", "share", "replies of the judge truncated at a token limit", "", VERBAL),
            Metric("unfinished", "questions", "unfinished questions", "Repeat the command to resume.", VERBAL),
            Metric("skipped", "questions", "questions of the set that are not asked", "", VERBAL),
            Metric("requests", "requests", "requests sent, failed ones included", "", VERBAL),
            Metric("prompt_tokens", "tokens", "tokens read, as the server counts", "", VERBAL),
            Metric("completion_tokens", "tokens", "tokens written, as the server counts", "", VERBAL),
            Metric("cost", "money", "tokens × prices", "In the currency of the prices.", "`verbal` with prices"),
        ),
    ),
    MetricTable(
        "Speed",
        "`speed.json` of `evaluate` with a model.",
        (
            Metric("questions", "questions", "questions answered", "", "`speed.json`"),
            Metric("tokens", "tokens", "tokens written", "", "`speed.json`"),
            Metric(
                "speed/tokens_per_s", "tokens/s", "tokens / seconds of answering, compilation included", "",
                "`speed.json`",
            ),
            Metric("time/answering", "s", "seconds of answering", "", "`speed.json`"),
            Metric("time/total", "s", "seconds of the command", "", "`speed.json`"),
            Metric("memory/peak", "bytes", "peak host memory of the process", "", "`speed.json`"),
        ),
    ),
)  # fmt: skip
