"""A server of OpenAI's form over the engine: `jaxrl-sql serve --model M`."""
