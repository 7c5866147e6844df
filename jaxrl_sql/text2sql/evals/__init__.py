"""Evaluate answers: `records` judges them, `score_predictions` applies the rules, `summary` aggregates."""
