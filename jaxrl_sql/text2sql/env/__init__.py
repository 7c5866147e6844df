"""Where SQL is run: `executor` and `files` alone import the native package, `ports` what others ask of an executor."""
