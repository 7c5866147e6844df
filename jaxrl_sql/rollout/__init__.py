"""Generation: a prompt is prefilled once and its cache is read by all of its samples."""

from jaxrl_sql.rollout.engine import Engine
from jaxrl_sql.rollout.sampling import Sample, Sampling

__all__ = ["Engine", "Sample", "Sampling"]
