"""Requests to the Hugging Face hub: repeated after bounded waits, and errors as one line with the remedy."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from huggingface_hub import HfApi, get_session
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)

from jaxrl_sql.types import InputError

Note = Callable[[str], object]
"""A function that prints a line for the user."""
Result = TypeVar("Result")

RETRIES = 5
"""Number of retries without new data after which a download fails."""
LONGEST_WAIT_S = 300
"""Longest wait in seconds, which is the window of the hub's rate limits. A response that asks for more is an error."""
UNREACHABLE, OFFLINE = "the hub cannot be reached", "HF_HUB_OFFLINE is set"
# The base of all errors of the HTTP library, which is another package from version 2 of huggingface_hub.
HttpError: type[Exception] = HfHubHTTPError.__bases__[0]
# HTTP statuses of transient failures.
_BUSY = frozenset({408, 429, 500, 502, 503, 504})


class DamagedFileError(OSError):
    """A downloaded file differs from the hub's size or checksum."""


def retry(
    work: Callable[[], Result],
    note: Note,
    received: Callable[[], int] = lambda: 0,
    stop: threading.Event | None = None,
    *,
    is_reachable: bool = True,
) -> Result:
    """Return the result of `work`, which sends requests; transient errors are retried with exponential backoff.

    A wait that the hub requests has precedence if it is longer. `received` returns the bytes received so far; new bytes
    reset the number of failures. `is_reachable`: the hub has answered before, so a refused connection is retried too.
    `note` prints a line before each wait. `stop` ends a wait, and then errors are raised.
    """
    failures, bytes_before = 0, received()
    while True:
        _limit_waits()
        try:
            return work()
        except (HttpError, OSError) as error:
            failures, bytes_before = 1 if received() > bytes_before else failures + 1, received()
            wait = _wait_s(error, failures, is_reachable)
            if wait is None or failures > RETRIES or (stop is not None and stop.is_set()):
                raise
            note(f"{_shorten(error)}: repeated in {wait:.0f} s ({failures} of {RETRIES})")
        (stop or threading.Event()).wait(wait)


def _wait_s(error: Exception, failures: int, is_reachable: bool) -> float | None:
    """Return the seconds to wait before a failed request is repeated, or None if it would fail again."""
    error = _request_error(error)
    if isinstance(error, HfHubHTTPError):
        if error.response.status_code not in _BUSY:
            return None
        return max(_retry_after_s(error.response.headers), 2.0 ** (failures - 1))
    is_connected = not type(error).__name__.startswith(("Connect", "Proxy", "UnsupportedProtocol"))
    # The library reports a file of unexpected size as a failed consistency check.
    is_transient = isinstance(error, (HttpError, DamagedFileError)) or "Consistency check" in str(error)
    is_transient = is_transient and not isinstance(error, OfflineModeIsEnabled) and (is_connected or is_reachable)
    return 2.0 ** (failures - 1) if is_transient else None


def _retry_after_s(headers: Mapping[str, str]) -> int:
    """Return the seconds that a response asks to wait; 0 if it does not ask."""
    after = headers.get("Retry-After", "")
    # `RateLimit: …;r=REMAINING;t=SECONDS`: with no requests remaining, the seconds until the window ends.
    exhausted = re.search(r"\br=0\b.*\bt=(\d+)", headers.get("RateLimit", ""))
    return int(after) if after.isdigit() else int(exhausted[1]) if exhausted else 0


def _limit_waits() -> None:
    """Install a hook that raises an error for a response that asks for a wait above `LONGEST_WAIT_S`.

    The library itself would wait.
    """
    hooks: list[Any] = get_session().event_hooks["response"]
    if _refuse_long_wait not in hooks:
        hooks.append(_refuse_long_wait)


def _refuse_long_wait(response: Any) -> None:
    wait = _retry_after_s(response.headers) if response.status_code in _BUSY else 0
    if wait > LONGEST_WAIT_S:
        raise InputError(
            f"the hub limits requests ({response.status_code}) and asks to wait {wait:,} s: repeat the command then, "
            "or set HF_TOKEN, which has a higher limit"
        )


def _request_error(error: Exception) -> Exception:
    """Return the error of the failed request itself.

    After a failed request, the library looks for the file in its cache and reports that it is not there.
    """
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
    return cause if isinstance(cause, Exception) else error


def _shorten(error: Exception) -> str:
    """Return an error as a few words."""
    error = _request_error(error)
    if isinstance(error, HfHubHTTPError):
        code = error.response.status_code
        return "the hub limits requests (429)" if code == 429 else f"the hub answers {code}"
    return f"the connection to the hub broke ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def reason_of(error: Exception, repo: str, revision: str) -> str:
    """Return why a download failed, with the remedy."""
    error = _request_error(error)
    if isinstance(error, HfHubHTTPError):
        return _refusal_reason(error, repo, revision)
    if isinstance(error, OfflineModeIsEnabled):
        return OFFLINE
    if isinstance(error, LocalEntryNotFoundError) or type(error).__name__.startswith(("Connect", "Proxy")):
        return UNREACHABLE
    is_disconnected = isinstance(error, HttpError)
    return f"{_shorten(error)}; the same command continues the download" if is_disconnected else _first_line(error)


def _refusal_reason(error: HfHubHTTPError, repo: str, revision: str) -> str:
    """Return why the hub refused a request, with the remedy."""
    code, message = error.response.status_code, error.response.headers.get("X-Error-Message", "")
    access = "set HF_TOKEN, or log in with `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision {revision} (404)"
    if isinstance(error, GatedRepoError):
        page = f"{HfApi().endpoint}/{repo}"
        return f"it is gated, and the hub refuses access ({code}): accept its terms at {page}, then {access}"
    if "Invalid credentials" in message:
        return f"the hub refuses the token ({code}): {access}"
    if code in (401, 403):
        return f"the hub refuses access ({code}): the name is wrong, or the model is private: {access}"
    if code == 404:
        return "the hub has no such model (404)"
    later = f"repeat the command later, or {access}" if code == 429 else "the same command continues the download"
    return f"{_shorten(error)}: {later}"
