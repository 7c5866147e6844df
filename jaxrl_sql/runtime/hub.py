"""Download models from the Hugging Face hub (`org/name` or `org/name@revision`) into its cache, and upload exports."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from jaxrl_sql.runtime.hub_files import DESCRIPTIVE_FILES, WEIGHTS
from jaxrl_sql.types import InputError

_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def is_hub_name(name: str) -> bool:
    """Return whether a name has the hub's form, and neither it nor its parent folder exists here."""
    path = Path(name)
    return bool(_NAME.fullmatch(name)) and path.suffix != ".gguf" and not path.exists() and not path.parent.exists()


def fetch(name: str, with_weights: bool = True, display: str = "auto") -> Path:
    """Download a model of the hub unless it is cached; return its folder, whose name is the commit.

    Without `with_weights` only its configuration and tokenizer are downloaded. `display` is the mode of the progress
    display on standard error (`runtime.display.make_display`).
    Raises InputError if the model does not exist or needs access rights, and if the hub cannot be reached and no copy
    is cached.
    """
    from jaxrl_sql.runtime.hub_download import download  # noqa: PLC0415 - slow, and few need it

    return download(name, with_weights, display)


def upload(folder: Path, repo: str, private: bool = False) -> str:
    """Upload a model's folder to a repository of the hub, created if absent; return the commit's address.

    The hub and the account come from the environment (`HF_ENDPOINT`, `HF_TOKEN`, or a login). Raises InputError for an
    invalid name, and if the hub refuses.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow, and few need it
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    if not _NAME.fullmatch(repo) or "@" in repo:
        raise InputError(f"--hub {repo}: a repository's name is expected, such as you/model")
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        patterns = [*DESCRIPTIVE_FILES, WEIGHTS, "*.gguf"]  # no other file is uploaded
        commit_message = "Export by jaxrl-sql"
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message=commit_message,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"--hub {repo}: not uploaded: {reason[0]}; the export is in {folder}") from error
    return str(commit)


def repo_of(path: str) -> str:
    """Return the hub name of a cached folder, or the name itself without its revision; empty for another folder."""
    if is_hub_name(path):
        return path.partition("@")[0]
    cached = next((part for part in Path(path).parts if part.startswith("models--")), "")  # models--ORG--NAME
    return cached.removeprefix("models--").replace("--", "/") if cached.count("--") > 1 else ""


def pinned_name(path: str) -> str:
    """Return `org/name@commit` of a folder in the hub's cache, which need not exist here; empty for another path."""
    folder = Path(path)
    is_commit = folder.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", folder.name)
    repo = repo_of(path) if is_commit else ""
    return f"{repo}@{folder.name}" if repo else ""


def find_name_and_revision(path: str) -> tuple[str, str]:
    """Return the name by which other programs load a model, and its commit or "".

    For a model of the hub this is its hub name, for others the absolute path, which does not depend on the current
    folder.
    """
    if repo := repo_of(path):
        return repo, pinned_name(path).partition("@")[2]
    return (str(Path(path).absolute()) if path else ""), ""


def local_folder(path: str) -> str:
    """Return the path of a model, after downloading a hub model or an absent folder of the hub's cache.

    Raises InputError if the download fails.
    """
    name = path if is_hub_name(path) else "" if Path(path).exists() else pinned_name(path)
    return str(fetch(name)) if name else path


def license_of(folder: str) -> str:
    """Return the licence in the model card of a folder; empty without one."""
    from huggingface_hub.repocard import metadata_load  # noqa: PLC0415 - slow, and few need it

    card = Path(folder) / "README.md"
    if not card.is_file():
        return ""
    try:
        name = (metadata_load(card) or {}).get("license")
    except (ValueError, OSError):
        return ""
    return name if isinstance(name, str) and re.fullmatch(r"[\w.+-]+", name) else ""
