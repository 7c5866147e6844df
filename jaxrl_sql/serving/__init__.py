"""The OpenAI-compatible server (`jaxrl-sql serve`) and the MCP server (`jaxrl-sql mcp`)."""
