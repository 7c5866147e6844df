"""Reinforcement learning for text-to-SQL in JAX."""
