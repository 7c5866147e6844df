"""Answers from a model folder or an endpoint, and their uses: evaluation, distillation, filtering, augmentation."""
