"""The runtime room."""
