"""Generate, prepare, augment, audit and repair text-to-SQL data.

A gold, here as in the whole package, is the reference query of a question.
"""
