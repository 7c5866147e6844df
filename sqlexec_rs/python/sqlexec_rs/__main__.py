"""`python -m sqlexec_rs`: see `cli`."""

import sys

from sqlexec_rs.cli import main

sys.exit(main())
