"""Run `jaxrl-sql train` as `python -m jaxrl_sql.train`, for launchers that start modules; never imported."""

from __future__ import annotations

import sys

from jaxrl_sql.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
