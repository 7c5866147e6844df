"""Checksums of a folder's files, written after the files and compared before they are read.

They are in `checksums.json`, whose `files` maps each path, relative to the folder, to "SIZE CRC", and whose `crc` is
that of `files` itself. A CRC-32 detects every flipped bit and every burst of up to 32 bits; zlib computes it faster
than a disk reads.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxrl_sql.parallel.processes import exchange, share
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.model_locator import MODEL
from jaxrl_sql.runtime.progress import ProgressCallback, Tally, no_progress
from jaxrl_sql.types import InputError

SUMS = "checksums.json"
_BLOCK = 1 << 22  # bytes per read
_THREADS = 4
# Errors of a `checksums.json` that is missing or damaged.
_UNREADABLE = (AttributeError, KeyError, OSError, TypeError, ValueError)


def write_sums(folder: Path, exclude: Collection[str] = ()) -> None:
    """Write the checksums of all files below a folder, except those with a name in `exclude`, to `checksums.json`.

    A subfolder with its own `checksums.json` is represented by that file.
    """
    _write(folder, [path for path in _files(folder) if path.name not in exclude])


def checked_bytes(folder: Path) -> int:
    """Return the number of bytes that `find_damage` reads in this process; 0 if the checksums cannot be read."""
    try:
        return sum(int(checksum.split()[0]) for checksum in _local_sums(folder).values())
    except _UNREADABLE:
        return 0


def find_damage(folder: Path, only: str = "", on_progress: ProgressCallback = no_progress) -> str:
    """Return a message about the first file below a folder that differs from its checksum, or "".

    `only`: name of a single file to check; "": all files. `on_progress` is called with the MiB read so far. The
    processes of a run divide the files among them, all must call this function, and all get the same message.
    """
    try:
        sums = _local_sums(folder, only)
    except _UNREADABLE:
        return _first_message(f"{SUMS} {'is damaged' if (folder / SUMS).is_file() else 'is missing'}")
    names, progress = [*sums], Tally(on_progress, unit=1 << 20)
    with ThreadPoolExecutor(_THREADS) as pool:
        errors = pool.map(lambda name: difference(folder / name, sums[name], progress.add), names)
        return _first_message(next((f"{name} {error}" for name, error in zip(names, errors, strict=True) if error), ""))


def seal_weights(model: Path) -> None:
    """Write the checksums of a run's model to the folder above, that of the run.

    The model's own folder has no checksums, so a user may copy that folder and change the copy.
    """
    _write(model.parent, sorted(model.glob("*.safetensors")))


def refuse_damaged_weights(source: str | Path) -> None:
    """Raise InputError if `source` is the model folder of a run and its weights differ from their checksums.

    A folder without our `config.yaml` is not a run, and its `checksums.json` belongs to another tool.
    """
    run = Path(source).resolve().parent
    is_sealed = all((run / name).is_file() for name in (SUMS, CONFIG))
    if Path(source).resolve().name == MODEL and is_sealed and (error := find_damage(run)):
        raise InputError(f"{run}: {error}: put it back from a copy, or delete {run / SUMS} if the change is intended")


def _write(folder: Path, files: Sequence[Path]) -> None:
    """Write the checksums of `files`, which are below a folder, to its `checksums.json`."""
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = dict(zip((str(path.relative_to(folder)) for path in files), pool.map(_checksum, files), strict=True))
    scratch = folder / f"{SUMS}.tmp"
    scratch.write_text(json.dumps({"files": sums, "crc": _crc_of(sums)}, indent=0) + "\n", encoding="utf-8")
    scratch.replace(folder / SUMS)


def difference(path: Path, checksum: str, on_read: ProgressCallback = no_progress) -> str:
    """Return how a file differs from its checksum, or ""; `on_read` is called with the number of bytes per block."""
    try:
        return "" if _checksum(path, on_read) == checksum else "does not match its checksum"
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror or error}"


def _first_message(message: str) -> str:
    """Return the first non-empty message of all processes, from that of this process; "" if all are empty."""
    return next(filter(None, exchange([message])), "")


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder; of a subfolder with a `checksums.json`, only that file."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from [path / SUMS] if (path / SUMS).is_file() else _files(path)
        elif path.name not in {SUMS, f"{SUMS}.tmp"}:
            yield path


def _local_sums(folder: Path, only: str = "") -> dict[str, str]:
    """Return the checksums of this process's share of the files, by name; raises errors of `_UNREADABLE`."""
    sums = _read_sums(folder)
    chosen = [name for name in sorted(sums) if only in {"", name}]
    return {chosen[i]: sums[chosen[i]] for i in share(len(chosen))}


def _read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums by file name, including those in the `checksums.json` of subfolders.

    Raises ValueError if the `checksums.json` is damaged.
    """
    content = json.loads((folder / SUMS).read_bytes())
    sums: dict[str, str] = dict(content["files"])
    if content["crc"] != _crc_of(sums):
        raise ValueError(f"{folder / SUMS} is damaged")
    # A damaged `checksums.json` of a subfolder is not read; `find_damage` reports it as a file of `sums`.
    subfolder_sums = {
        f"{Path(name).parent}/{inner}": value
        for name in sums
        if Path(name).name == SUMS and not difference(folder / name, sums[name])
        for inner, value in _read_sums((folder / name).parent).items()
    }
    return sums | subfolder_sums


def _checksum(path: Path, on_read: ProgressCallback = no_progress) -> str:
    """Return "SIZE CRC" of a file: its size in bytes, and its CRC-32 in hexadecimal."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
            on_read(len(block))
    return f"{size} {crc:08x}"


def _crc_of(sums: Mapping[str, str]) -> str:
    """Return the CRC-32 of checksums as JSON, in hexadecimal."""
    return f"{zlib.crc32(json.dumps(sums).encode()):08x}"
