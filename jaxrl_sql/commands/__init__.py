"""The commands: each reads its arguments, builds its configuration, calls the package and prints."""
