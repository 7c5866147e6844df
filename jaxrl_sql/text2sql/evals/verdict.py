"""The verdict on one prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxrl_sql.text2sql.env.verdicts import is_verdict

NOT_ASKED = "not_asked"
"""The status of a question that was not asked, for example because its prompt is too long; it counts as wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one question's prediction, `sql` (None: no SQL), with its gold, the reference query.

    `scores` has a value per rule that applies, from 0 to 1 (for rules of speed to 1.12). It is 0 if the prediction
    failed; `scores` is empty if the gold or the database failed. A status is `ok` or the name of the failure. `status`
    and `gold_status` are those on the question's database. A suite is several databases of one schema with other rows;
    `suite_gold_status` is the gold's status on them ("": no suite). `stop` is the limit that stopped the prediction:
    `wall`, `cpu`, `vm_steps`, `cancelled`, `killed` or `memory`. Times are wall time in milliseconds; row counts are
    those on the question's database. `reasons` are the reasons for disagreement between rules, see `differences`.
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
        """Return whether the outcome allows a verdict on the prediction; otherwise it has no scores."""
        return is_verdict(self.status, self.stop)

    @property
    def gold_ok(self) -> bool:
        """Return whether the gold ran; otherwise the question has no scores."""
        return self.gold_status == "ok"

    def is_right(self, rule: str) -> bool:
        """Return whether the prediction has the full score by a rule; False without a score."""
        return self.scores.get(rule, 0.0) >= 1.0
