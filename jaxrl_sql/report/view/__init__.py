"""`jaxrl-sql view`: show the answers of one or two runs or evaluations in a browser."""
