"""Prepare training data: select questions of several sets, merge and balance them, and split them by database.

The result is in the plain format: a folder with `questions.jsonl` and `databases/`.
"""
