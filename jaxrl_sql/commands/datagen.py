"""How the commands of this room end."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable

from jaxrl_sql.runtime.folder import file_error, no_folder
from jaxrl_sql.runtime.signals import INTERRUPTED, drop_output
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.text2sql.env.executor import ExecutorError
from jaxrl_sql.types import InputError, JaxrlSqlError


def exit_code(work: Callable[[], None]) -> int:
    """Do a command's work and return its exit code; what a person can mend is told in one line.

    2 for bad input; 1 for what went wrong on the way, a full disk or an executor that broke off; 130 after Ctrl-C.
    Other errors are ours, and raised.
    """
    try:
        work()
    except InputError as error:
        return _tell(str(error), 2)
    except (JaxrlSqlError, ExecutorError) as error:
        return _tell(str(error), 1)
    except BrokenPipeError:
        drop_output()
        return 1
    except (FileExistsError, NotADirectoryError) as error:
        return _tell(str(no_folder(error)), 2)
    except OSError as error:
        return _tell(str(file_error(error)), 1)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise
        return _tell(f"a database cannot be written: {error}", 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _tell(line: str, code: int) -> int:
    print_text(f"error: {line}", sys.stderr)
    return code
