"""What a set of answers is worth: `records` judges them, `score_predictions` by rule, `summary` counts."""
