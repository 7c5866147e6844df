"""Answers to questions from a model folder or an endpoint: clients, prompts of a set, journals."""
