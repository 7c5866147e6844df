"""A training run by GRPO or demonstrations: lifecycle, rollouts, evaluation, checkpoints, exports; and verbal RL."""
