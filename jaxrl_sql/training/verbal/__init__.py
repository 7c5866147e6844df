"""Verbal reinforcement learning: a model judges its own candidates in words (PaVeRL-SQL, section 4)."""
