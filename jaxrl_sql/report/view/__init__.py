"""`jaxrl-sql view`: the answers of a run, an evaluation or two of them in a browser."""
