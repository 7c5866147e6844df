"""Download a model's files from the Hugging Face hub into its cache, with progress, retries and bounded waits.

Large files are written to the cache's `blobs/` as they arrive, and a later command continues an interrupted download;
`huggingface_hub` would begin it again. That library lists the files and downloads the small ones. It also creates the
folder of the commit, `snapshots/COMMIT`, with a link to each file in `blobs/`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from huggingface_hub import (
    HfApi,
    get_hf_file_metadata,
    get_session,
    get_token,
    hf_hub_url,
    hf_raise_for_status,
    snapshot_download,
)
from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_DISABLE_PROGRESS_BARS
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, RevisionNotFoundError
from huggingface_hub.utils import WeakFileLock, logging  # type: ignore[attr-defined]
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

from jaxrl_sql.runtime.display import make_display
from jaxrl_sql.runtime.folder import UNWRITABLE
from jaxrl_sql.runtime.hub_files import DESCRIPTIVE_FILES, DUPLICATES, WEIGHTS, is_complete, is_wanted
from jaxrl_sql.runtime.hub_requests import (
    OFFLINE,
    UNREACHABLE,
    DamagedFileError,
    HttpError,
    Note,
    reason_of,
    retry,
)
from jaxrl_sql.runtime.progress import ProgressCallback
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError

_TIMEOUT_S = 10.0
# Seconds between redraws of the progress display, and the number of large files that are downloaded at the same time.
_REDRAW_S, _CONCURRENT_FILES = 0.25, 4


class Listing(NamedTuple):
    """The wanted files of a commit: their sizes in bytes (0: unknown), and those in Git's large file storage."""

    commit: str
    sizes: Mapping[str, int]
    large: frozenset[str]


def download(name: str, with_weights: bool, mode: str) -> Path:
    """Download the missing files of a model, `org/name` or `org/name@revision`; return its folder in the cache.

    `mode` is that of the progress display, as `run.display`: `auto`, `rich`, `plain` or `none`. If the hub cannot be
    reached, a complete copy in the cache is returned. Raises InputError with the reason if there is none.
    """
    repo, _, revision = name.partition("@")
    try:
        with _silence_library():
            return _download(name, repo, revision, with_weights, mode)
    except (HttpError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise
        reason = reason_of(error, repo, revision)
    if reason in (UNREACHABLE, OFFLINE):
        reason += ", and the cache has no complete copy: give the path of a model's folder or GGUF file on this machine"
    raise InputError(f"model {name}: not a local folder, and the hub did not provide it: {reason}")


def _download(name: str, repo: str, revision: str, with_weights: bool, mode: str) -> Path:
    """Download as `download` does; errors of requests are raised as they are."""
    note: Note = partial(print_text, stream=sys.stderr)
    try:
        listing = retry(partial(_list_files, repo, revision, with_weights), note, is_reachable=False)
    except (HttpError, OSError) as error:
        folder = None if isinstance(error, RevisionNotFoundError) else _find_cached(repo, revision, with_weights)
        if folder is None:
            raise
        if not isinstance(error, OfflineModeIsEnabled):
            note(f"model {name}: {reason_of(error, repo, revision)}; the cache has commit {folder.name}")
        return folder
    _check_files(name, listing, with_weights)
    snapshot = Path(HF_HUB_CACHE) / _cache_folder(repo) / "snapshots" / listing.commit
    missing = {file: size for file, size in listing.sizes.items() if not (snapshot / file).exists()}
    if not missing:
        return _complete_snapshot(repo, revision, listing, note)
    _check_space(name, sum(missing.values()))
    with _show_progress(name, missing, mode) as (note, show):
        large = {file: size for file, size in missing.items() if file in listing.large}
        _fetch_large(repo, listing.commit, large, show, note)
        folder = _complete_snapshot(repo, revision, listing, note)
        note(f"model {name}: commit {folder.name}")
    return folder


@contextmanager
def _silence_library() -> Iterator[None]:
    """Turn off the library's bars and warnings; waits and retries are reported here."""
    level, has_bars = logging.get_verbosity(), HF_HUB_DISABLE_PROGRESS_BARS is None
    logging.set_verbosity_error()
    if has_bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            enable_progress_bars()


@contextmanager
def _show_progress(name: str, missing: Mapping[str, int], mode: str) -> Iterator[tuple[Note, ProgressCallback]]:
    """Show the download on standard error; yield a function that prints a line, and the callback of the bytes done."""
    total_mib = -(-sum(missing.values()) // (1 << 20))  # rounded up
    is_live = mode == "rich" or (mode == "auto" and sys.stderr.isatty())
    last_shown = 0.0
    task_name = f"downloading {len(missing)} file{'s' if len(missing) > 1 else ''}"
    with (
        make_display(mode, total_mib, f"model {name} from {HfApi().endpoint}", sys.stderr, unit="MiB") as display,
        display.task(task_name, total_mib, "MiB") as on_progress,
    ):

        def show(done: int) -> None:
            nonlocal last_shown
            on_progress(done >> 20)
            if is_live and time.monotonic() - last_shown > _REDRAW_S:
                last_shown = time.monotonic()
                display.update(done >> 20, {"phase": "downloading"})

        yield display.note, show


def _list_files(repo: str, revision: str, with_weights: bool) -> Listing:
    """Ask the hub for the commit of a revision and its wanted files."""
    metadata = HfApi().model_info(repo, revision=revision or "main", files_metadata=True, timeout=_TIMEOUT_S)
    wanted = [file for file in metadata.siblings or () if is_wanted(file.rfilename, with_weights)]
    large = frozenset(file.rfilename for file in wanted if file.lfs)
    return Listing(str(metadata.sha), {file.rfilename: file.size or 0 for file in wanted}, large)


def _check_files(name: str, listing: Listing, with_weights: bool) -> None:
    """Raise InputError for a repository without a model's configuration or without weights in safetensors."""
    absent = [] if "config.json" in listing.sizes else ["config.json"]
    if with_weights and not any(fnmatch.fnmatchcase(file, WEIGHTS) for file in listing.sizes):
        absent.append(f"weights in {WEIGHTS}")
    if absent:
        raise InputError(
            f"model {name}: its repository has no {' and no '.join(absent)}; name a model in transformers' format, or "
            "download a GGUF file and give its path"
        )


def _check_space(name: str, size: int) -> None:
    """Raise InputError if the cache's disk is too small for a download of `size` bytes."""
    existing_folder = next(folder for folder in (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents) if folder.exists())
    free = shutil.disk_usage(existing_folder).free
    if size > free:
        raise InputError(
            f"model {name}: the download has {size >> 20:,} MiB, and {HF_HUB_CACHE} has {free >> 20:,} MiB free: "
            "HF_HOME names another folder"
        )


def _find_cached(repo: str, revision: str, with_weights: bool) -> Path | None:
    """Return the folder of a complete copy in the cache, or None."""
    try:
        folder = Path(
            snapshot_download(
                repo,
                revision=revision or None,
                local_files_only=True,
                allow_patterns=[*DESCRIPTIVE_FILES, WEIGHTS] if with_weights else [*DESCRIPTIVE_FILES],
                ignore_patterns=["*/*", *DUPLICATES],
            )
        )
    except LocalEntryNotFoundError:
        return None
    return folder if is_complete(folder, with_weights) else None


def _complete_snapshot(repo: str, revision: str, listing: Listing, note: Note) -> Path:
    """Download and link the files that are still missing in the commit's folder, and return the folder."""
    files = sorted(listing.sizes)

    def download_missing() -> Path:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=files, ignore_patterns=["*/*"]))

    return retry(download_missing, note)


def _fetch_large(repo: str, commit: str, sizes: Mapping[str, int], show: ProgressCallback, note: Note) -> None:
    """Download large files to the cache, several at a time; `show` is called with the bytes done of all of them."""
    stop, lock, done = threading.Event(), threading.Lock(), 0

    def advance(size: int) -> None:
        nonlocal done
        if stop.is_set():  # another file's download failed, or the command was interrupted
            raise InterruptedError
        with lock:
            done += size
            show(done)

    def fetch(file: str) -> None:
        file_download = _FileDownload(repo, commit, file, advance)
        retry(file_download.fetch, note, lambda: file_download.received, stop)

    with ThreadPoolExecutor(_CONCURRENT_FILES) as pool:
        try:
            for future in as_completed([pool.submit(fetch, file) for file in sizes]):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _FileDownload:
    """The download of one file; `received` counts the bytes that this process has received.

    `advance` is called with the number of further bytes of the file, those of an earlier process included.
    """

    def __init__(self, repo: str, commit: str, file: str, advance: Callable[[int], None]) -> None:
        self._repo, self._commit, self._file = repo, commit, file
        self._advance = advance
        self._reported_bytes = 0
        self.received = 0

    def fetch(self) -> None:
        """Download the rest of the file to the cache's `blobs/`, under its checksum."""
        url = hf_hub_url(self._repo, self._file, revision=self._commit, endpoint=HfApi().endpoint)
        metadata = get_hf_file_metadata(url, timeout=_TIMEOUT_S)
        if not metadata.etag or metadata.size is None:
            return  # `snapshot_download` downloads this file
        # Paths and lock are those of huggingface_hub, so that both can use the cache at the same time.
        cache, folder = Path(HF_HUB_CACHE), _cache_folder(self._repo)
        blob, lock_path = cache / folder / "blobs" / metadata.etag, cache / ".locks" / folder / f"{metadata.etag}.lock"
        blob.parent.mkdir(parents=True, exist_ok=True)
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock_path):
            if not blob.exists():
                incomplete = blob.with_name(f"{metadata.etag}.incomplete")
                existing_bytes = incomplete.stat().st_size if incomplete.exists() else 0
                if existing_bytes < metadata.size:
                    self._append(
                        incomplete,
                        existing_bytes,
                        metadata.location,
                        urlsplit(metadata.location).netloc == urlsplit(url).netloc,
                    )
                self._check(incomplete, metadata.etag, metadata.size, was_resumed=existing_bytes > 0)
                incomplete.replace(blob)

    def _append(self, incomplete: Path, existing_bytes: int, address: str, is_hub: bool) -> None:
        """Append the rest of a file at an address; only the hub itself gets the token."""
        headers = {"Accept-Encoding": "identity"}
        if is_hub and (token := get_token()):
            headers["Authorization"] = f"Bearer {token}"
        if existing_bytes:
            headers["Range"] = f"bytes={existing_bytes}-"
        with get_session().stream("GET", address, headers=headers, timeout=_TIMEOUT_S) as response:
            hf_raise_for_status(response)
            with incomplete.open("ab") as file:
                if existing_bytes and response.status_code != 206:  # the whole file is sent again
                    file.truncate(0)
                    existing_bytes = 0
                self._count(existing_bytes)
                for chunk in response.iter_raw():
                    file.write(chunk)
                    self.received += len(chunk)
                    self._count(existing_bytes := existing_bytes + len(chunk))

    def _count(self, size: int) -> None:
        """Report that the file has `size` bytes."""
        self._advance(size - self._reported_bytes)
        self._reported_bytes = size

    def _check(self, incomplete: Path, checksum: str, size: int, *, was_resumed: bool) -> None:
        """Raise `DamagedFileError` for a file of another size or, if it was resumed, another checksum.

        A damaged file of full size is removed; a shorter file stays, so that a retry continues it.
        """
        actual_size = incomplete.stat().st_size
        is_sound = actual_size == size
        if is_sound and was_resumed and re.fullmatch(r"[0-9a-f]{64}", checksum):
            with incomplete.open("rb") as file:
                is_sound = hashlib.file_digest(file, "sha256").hexdigest() == checksum
        if is_sound:
            return
        if actual_size >= size:
            incomplete.unlink()
        raise DamagedFileError(f"{self._file}: {actual_size:,} of {size:,} bytes arrived, or its checksum differs")


def _cache_folder(repo: str) -> str:
    """Return the name of a repository's folder in the cache."""
    return f"models--{repo.replace('/', '--')}"
