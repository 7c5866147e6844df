"""Answers from a model folder or an endpoint, and what is made of them: evaluation, distillation, filtering."""
