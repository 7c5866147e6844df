"""Where SQL is run: `executor` is the only importer of the native module, `ports` what others ask of an executor."""
