"""What is found out about one prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxrl_sql.text2sql.env.verdicts import is_verdict

NOT_ASKED = "not_asked"
"""The status of a question that the model could not be asked, as where its prompt is too long: it counts as wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One question's prediction, `sql` (None: there was none), against its gold.

    `scores` has the value of each rule that could be applied, 0 to 1 (of speed: 1.12): 0 where the prediction did not
    run, and none where the gold did not or the database failed. `status` and `gold_status` say how the two ended on the
    question's database, `suite_gold_status` how the gold did on the databases of its suite ("": no suite).
    `stop` names the bound that stopped the prediction: `wall`, `cpu`, `vm_steps`, `cancelled`, `killed` or `memory`.
    Times are milliseconds of wall time, rows are counted on the question's database. `reasons` say why rules differ,
    see `differences`.
    """

    uid: str
    sql: str | None
    status: str
    gold_status: str = "ok"
    scores: Mapping[str, float] = field(default_factory=dict)
    stop: str = ""
    pred_ms: float = 0.0
    gold_ms: float = 0.0
    suite_gold_status: str = ""
    reasons: tuple[str, ...] = ()
    pred_rows: int = 0
    gold_rows: int = 0

    @property
    def executes(self) -> bool:
        """Return whether the prediction ran within its limits."""
        return self.status == "ok"

    @property
    def is_judged(self) -> bool:
        """Return whether the outcome says something of the prediction; where it does not, it has no scores."""
        return is_verdict(self.status, self.stop)

    @property
    def gold_ok(self) -> bool:
        """Return whether the gold ran; where it did not, the question has no scores."""
        return self.gold_status == "ok"

    def is_right(self, rule: str) -> bool:
        """Return whether the prediction is all right by a rule; not where it has no score."""
        return self.scores.get(rule, 0.0) >= 1.0
