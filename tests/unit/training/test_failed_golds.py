"""The message about golds of a held-out set that fail."""

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.training.evaluation import describe_failed_golds

LINES = {"dev_1": "dev.csv:12"}


def test_message_names_place_status_and_limit() -> None:
    verdicts = [Verdict("dev_0", "SELECT 1", "ok"), Verdict("dev_1", "SELECT 1", "ok", "timeout")]
    message = describe_failed_golds(verdicts, LINES, ExecutorConfig(engine_timeout_ms=700))
    assert message.startswith("1 gold fails, and every answer counts as wrong: dev.csv:12 (timeout): correct the SQL")
    assert "engine_timeout_ms=700" in message


def test_message_names_no_limit_without_a_timeout_and_at_most_five_golds() -> None:
    verdicts = [Verdict(f"q{i}", None, "no_sql", "schema_error") for i in range(7)]
    message = describe_failed_golds(verdicts, LINES, ExecutorConfig())
    assert message.startswith("7 golds fail")
    assert "q4 (schema_error), and 2 more: correct" in message
    assert "timeout_ms" not in message
    assert not describe_failed_golds([Verdict("a", "SELECT 1", "wrong")], LINES, ExecutorConfig())
