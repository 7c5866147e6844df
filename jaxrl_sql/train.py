"""`python -m jaxrl_sql.train` is `jaxrl-sql train`, for pods that start modules. Nothing imports this file."""

from __future__ import annotations

import sys

from jaxrl_sql.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
