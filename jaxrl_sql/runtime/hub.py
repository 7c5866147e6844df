"""Models of the Hugging Face hub by their names there, `org/name` or `org/name@revision`: fetched, and uploaded.

What is fetched lies in the hub's cache.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from jaxrl_sql.types import InputError

_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
ASKED = "jaxrl_sql.yaml"
"""What of a model's folder says how it is asked: see `model_locator`."""
_ABOUT = ["*.json", "*.jinja", "*.txt", "*.model", "README.md", ASKED]
_WEIGHTS = ["*.safetensors"]


def is_hub_name(name: str) -> bool:
    """Return whether a name can only be the hub's: it has its form, and is neither a path here nor in a folder here."""
    path = Path(name)
    return bool(_NAME.fullmatch(name)) and path.suffix != ".gguf" and not path.exists() and not path.parent.exists()


def fetch(name: str, with_weights: bool = True) -> Path:
    """Return the folder of a model of the hub, or of its shape and tokenizer alone; what is cached is not fetched.

    Raises InputError for a model that is not there or not to be had, and where there is neither a network nor a copy.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow, and few need it
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    if not sys.stderr.isatty():
        disable_progress_bars()
    repo, _, revision = name.partition("@")
    wanted = _ABOUT + (_WEIGHTS if with_weights else [])
    try:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=wanted, ignore_patterns=["*/*"]))
    except LocalEntryNotFoundError:
        reason = "the hub cannot be reached, and no copy of it is in the cache"
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
    raise InputError(f"model {name}: no such folder here, and it was not fetched from the hub: {reason}")


def upload(folder: Path, repo: str, private: bool = False) -> str:
    """Upload a model's folder to a repository of the hub, made where it is not there, and return the commit's address.

    The hub and the account are those of the environment (`HF_ENDPOINT`, `HF_TOKEN`, or a login). Raises InputError for
    a name that is none, and for what the hub refuses.
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
        kinds = [*_ABOUT, *_WEIGHTS, "*.gguf"]  # what else lies in the folder is nobody's business
        about = "Export by jaxrl-sql"
        done = api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message=about, allow_patterns=kinds, ignore_patterns=["*/*"]
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"--hub {repo}: not uploaded: {reason[0]}; {folder} holds what was exported") from error
    return str(done)


def repo_of(path: str) -> str:
    """Return the hub's name of a folder in its cache, or of a name as it is; empty for another folder."""
    if is_hub_name(path):
        return path.partition("@")[0]
    cached = next((part for part in Path(path).parts if part.startswith("models--")), "")
    return cached.removeprefix("models--").replace("--", "/") if cached.count("--") > 1 else ""


def license_of(folder: str) -> str:
    """Return the licence that the card of a model's folder names; empty where it names none."""
    from huggingface_hub.repocard import metadata_load  # noqa: PLC0415 - slow, and few need it

    card = Path(folder) / "README.md"
    if not card.is_file():
        return ""
    try:
        found = (metadata_load(card) or {}).get("license")
    except (ValueError, OSError):
        return ""
    return found if isinstance(found, str) and re.fullmatch(r"[\w.+-]+", found) else ""
