"""A training run: its session, questions, rollouts, evaluation and checkpoints, shared by the commands."""
