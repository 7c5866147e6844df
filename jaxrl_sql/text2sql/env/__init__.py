"""Run SQL: the executor, database addresses, dialects and dialogues; `ports` is the interface of an executor."""
