"""Refuse the old name of the command `python -m jaxrl_sql.datagen.synth`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.stderr.write("jaxrl_sql.data.synth has moved: python -m jaxrl_sql.datagen.synth\n")
    sys.exit(2)
