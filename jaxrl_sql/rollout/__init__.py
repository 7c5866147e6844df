"""Generation: a prompt is prefilled once and its cache is read by all of its samples."""

from jaxrl_sql.rollout.engine import Engine
from jaxrl_sql.rollout.sampling import Sample, SamplingParams
from jaxrl_sql.sqlenv.turns import SQL_STOPS, Action, Environment, PendingObservation, SqlTurns, Turns

__all__ = [
    "SQL_STOPS",
    "Action",
    "Engine",
    "Environment",
    "PendingObservation",
    "Sample",
    "SamplingParams",
    "SqlTurns",
    "Turns",
]
