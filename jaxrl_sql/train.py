"""Run `jaxrl-sql train` as `python -m jaxrl_sql.train`, for launchers that start modules; never imported."""

from __future__ import annotations

import sys

from jaxrl_sql.runtime.signals import exit_on_ctrl_c_during_imports

if __name__ == "__main__":
    with exit_on_ctrl_c_during_imports():
        from jaxrl_sql.commands.train import main

        sys.exit(main())
