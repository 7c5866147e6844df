"""Text-to-SQL without JAX: benchmarks, schemas, prompts, the SQL environment, rewards, recipes and evaluation."""
