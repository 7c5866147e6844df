"""Databases: copies between engines, and samples of a server."""
