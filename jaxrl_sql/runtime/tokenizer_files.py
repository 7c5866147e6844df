"""Read and write tokenizers of Hugging Face folders by `tokenizer.json`, regardless of the class that they name.

The tokenizer classes of transformers apply their own rules, which differ between versions: LlamaTokenizerFast, named in
the folder of a byte-level tokenizer, drops spaces. So the general class, `PreTrainedTokenizerFast`, wraps
`tokenizer.json`. The other files only add roles of special tokens (`bos_token`, `eos_token`, …), further tokens with
their ids, and the chat template. Folders are written so that transformers 4 and 5 give equal ids. transformers is
imported on the first call.

"Fields" are the values of a tokenizer's JSON files, such as `tokenizer_config.json`. "Added" tokens are those that a
tokenizer searches in a text before it applies its vocabulary.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl_sql.runtime.control_tokens import is_tag
from jaxrl_sql.types import Fields, InputError, Record, Tokenizer

TOKENIZER_FILE, FIELDS_FILE, ROLES_FILE = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE_FILE, MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
ADDED_FILE = "added_tokens.json"
# An exported folder's chat template may include the prefill, the start of each answer, for other programs. This field
# then has the tokenizer's original template, which `read_tokenizer` uses.
OWN_TEMPLATE = "jaxrl_sql_chat_template"
_VOCABULARIES = (TOKENIZER_FILE, "tokenizer.model", "vocab.json")
# Files of an earlier tokenizer, which transformers would combine with the written ones.
_OTHER_FILES = (ROLES_FILE, ADDED_FILE, TEMPLATE_FILE)
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_DEFAULT_ROLES = ("bos_token", "eos_token", "unk_token")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
# Fields that are copied from the files read and to the files written.
_COPIED_FIELDS = ("model_max_length", "padding_side", "truncation_side")
_MAX_LENGTH = 1 << 53  # transformers writes 1e30 for a tokenizer without a longest text
_SQL = "SELECT a FROM b WHERE c = 1"
# Test texts: leading and repeated spaces, line ends, case, accents in both forms, digits, other scripts, signs.
_TEXTS = (
    "SELECT name, COUNT(*) FROM singer WHERE age >= 42 GROUP BY name;",
    " It's  a   leading SPACE,\ttabs and trailing ones  ",
    "\n\nLines\r\nand more\n\n  of them\n",
    "Z\u00fcrich caf\u00e9 Zu\u0308rich cafe\u0301 \u1e9b\u0323 \ufb01",
    "12 1234567 3.14159 1e-5 \u0663 \u00b2",
    "\u6771\u4eac \u041c\u043e\u0441\u043a\u0432\u0430 \u05e9\u05dc\u05d5\u05dd \u2265 \u2581x",
    "\U0001f600 \U0001f469\u200d\U0001f52c",
)


def general_tokenizer(raw: Any, **fields: Any) -> Tokenizer:
    """Wrap `raw`, a `tokenizers.Tokenizer`, in transformers' general class; `raw` must not be used afterwards.

    `fields` are arguments of that class. Ids are those of `raw`, and decoding does not change spaces.
    """
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    raw.no_padding()
    raw.no_truncation()
    # transformers copies its argument, which takes a second for a large vocabulary and is not needed here.
    raw.__deepcopy__ = lambda _memo: raw
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, clean_up_tokenization_spaces=False, **fields)
    del raw.__deepcopy__
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a folder, from disk only; decoding never changes spaces.

    Ids are those of the folder's `tokenizer.json`. Without that file, the class that the folder names reads it. Raises
    InputError if there is no tokenizer, or if it cannot be loaded.
    """
    if not folder.is_dir():
        raise InputError(f"tokenizer: {folder} is not a folder")
    names = (*_VOCABULARIES, FIELDS_FILE)
    if not any((folder / name).is_file() for name in names):
        raise InputError(f"tokenizer: {folder} has no {' or '.join(names)}: set data.tokenizer.path")
    try:
        return _from_tokenizer_json(folder) if (folder / TOKENIZER_FILE).is_file() else _from_named_class(folder)
    except InputError:
        raise
    except Exception as error:  # transformers raises errors of many types for invalid files
        if not any((folder / name).is_file() for name in _VOCABULARIES):
            raise InputError(
                f"tokenizer: {folder} has no tokenizer.json: copy it from where the model is, or name "
                "data.tokenizer.path"
            ) from error
        reason = " ".join(str(error).split())
        raise InputError(f"tokenizer: {folder} cannot be loaded ({reason or repr(error)})") from error


def _from_tokenizer_json(folder: Path) -> Tokenizer:
    """Wrap a folder's tokenizer.json; tokens of other files for which no file has an id are omitted."""
    import tokenizers  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    raw, fields = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE)), _fields(folder)
    fields |= _default_roles(fields)
    _add_configured_tokens(raw, folder, fields)
    added = _added_tokens(raw)
    roles = {name: text for name, text in _roles(fields) if raw.token_to_id(text) is not None}
    # transformers adds the tokens of roles that it gets as arguments: with a padding token `!`, it would split `!=`.
    # So ordinary tokens of the vocabulary get their roles below, by assignment, which adds nothing.
    role_tokens = {name: text for name, text in roles.items() if text in added or is_tag(text)}
    extra_specials = (text for text in _specials_without_role(fields) if raw.token_to_id(text) is not None)
    copied_fields = {name: fields[name] for name in _COPIED_FIELDS if fields.get(name) is not None}
    tokenizer = general_tokenizer(
        raw,
        extra_special_tokens=[text for text in extra_specials if text in added or is_tag(text)],
        chat_template=_chat_template(folder, fields),
        **copied_fields,
        **role_tokens,
    )
    for name in roles.keys() & set(_ROLES) - role_tokens.keys():
        setattr(tokenizer, name, roles[name])
    return tokenizer


def _add_configured_tokens(raw: Any, folder: Path, fields: Fields) -> None:
    """Add the tokens for which another file than tokenizer.json has an id.

    These are tokens that tokenizer.json lacks, and control tokens that are in its vocabulary but not yet added. Tokens
    that are added already keep their flags. Raises InputError for an id that conflicts with tokenizer.json.
    """
    configured = sorted(_configured_ids(folder, fields), key=lambda entry: entry[0])
    already_added = _added_tokens(raw)
    new: Record = {}
    for token_id, token, _ in configured:
        text = token.content
        is_control = raw.token_to_id(text) == token_id and (token.special or is_tag(text))
        if text not in already_added and (raw.token_to_id(text) is None or is_control):
            new.setdefault(text, token)
    raw.add_tokens([*new.values()])
    for token_id, token, file in configured:
        if (actual_id := raw.token_to_id(token.content)) != token_id:
            raise InputError(
                f"tokenizer: {folder / file} gives {token.content!r} the id {token_id}, and {TOKENIZER_FILE} the id "
                f"{actual_id}: copy both files from the model's source, or set data.tokenizer.path"
            )


def _configured_ids(folder: Path, fields: Fields) -> Iterator[tuple[int, Any, str]]:
    """Yield (id, token, file name) of each token with an id in another file than tokenizer.json."""
    from tokenizers import AddedToken  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    for token_id, token in (fields.get("added_tokens_decoder") or {}).items():
        if text := _token_text(token):
            flags = {flag: token[flag] for flag in _FLAGS if flag in token}
            yield int(token_id), AddedToken(text, **flags), FIELDS_FILE
    special = {*_specials_without_role(fields), *(text for _, text in _roles(fields))}
    for text, token_id in _read_json(folder / ADDED_FILE).items():
        yield token_id, AddedToken(text, special=text in special, normalized=text not in special), ADDED_FILE


def _added_tokens(raw: Any) -> set[str]:
    return {token.content for token in raw.get_added_tokens_decoder().values()}


def _read_json(path: Path) -> Record:
    """Return the object in a JSON file; empty if there is no file."""
    fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(fields, dict):
        raise InputError(f"tokenizer: {path}: a JSON object is expected")
    return fields


def _fields(folder: Path) -> Record:
    """Return a tokenizer's fields, those of the file of roles included.

    As in transformers, `tokenizer_config.json` has precedence if it lists the added tokens, else the file of roles.
    """
    fields, roles = _read_json(folder / FIELDS_FILE), _read_json(folder / ROLES_FILE)
    return {**roles, **fields} if "added_tokens_decoder" in fields else {**fields, **roles}


def _token_text(token: Any) -> str | None:
    """Return the text of a token, a text or an object with `content`; None for other values of a field."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _roles(fields: Fields) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of each special token with a role: the standard roles, and those that only this model has."""
    extra = fields.get("extra_special_tokens")
    candidates = {**fields, **(extra if isinstance(extra, Mapping) else {})}
    for name, token in candidates.items():
        # `add_bos_token` is a field with such a name, too, but its value is no token.
        if name.endswith("_token") and (text := _token_text(token)):
            yield name, text


def _specials_without_role(fields: Fields) -> list[str]:
    """Return the texts of special tokens without roles."""
    lists = (fields.get(name) for name in ("extra_special_tokens", "additional_special_tokens"))
    texts = (_token_text(token) for tokens in lists if isinstance(tokens, list) for token in tokens)
    return [*dict.fromkeys(text for text in texts if text)]


def _default_roles(fields: Fields) -> dict[str, str]:
    """Return the default tokens of the folder's tokenizer class for roles that no file sets."""
    import transformers  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    absent = [name for name in _DEFAULT_ROLES if name not in fields]
    tokenizer_class = getattr(transformers, str(fields.get("tokenizer_class")), None) if absent else None
    if not isinstance(tokenizer_class, type):
        return {}
    parameters = inspect.signature(tokenizer_class).parameters
    defaults = {name: parameters[name].default for name in absent if name in parameters}
    texts = {name: getattr(token, "content", token) for name, token in defaults.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def has_chat_template(folder: Path) -> bool:
    """Return whether a folder's tokenizer has a chat template; False for one that `read_tokenizer` refuses."""
    try:
        return bool(_chat_template(folder, _fields(folder)))
    except (InputError, ValueError):
        return False


def _chat_template(folder: Path, fields: Fields) -> Any:
    """Return the tokenizer's own chat template, or several by name; files take priority over the field."""
    if tokenizer_template := fields.get(OWN_TEMPLATE):
        return tokenizer_template
    files = {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        files["default"] = folder / TEMPLATE_FILE
    templates = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    if not templates:
        field = fields.get("chat_template")
        return {each["name"]: each["template"] for each in field} if isinstance(field, list) else field
    return templates["default"] if templates.keys() == {"default"} else templates


def _from_named_class(folder: Path) -> Tokenizer:
    """Read a folder without tokenizer.json by the class of transformers that it names.

    Raises InputError if the class loses spaces, which it does for some folders.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.chat_template = _fields(folder).get(OWN_TEMPLATE) or tokenizer.chat_template
    decoded = tokenizer.decode(tokenizer.encode(_SQL, add_special_tokens=False))
    if decoded.count(" ") < _SQL.count(" "):
        raise InputError(
            f"tokenizer: {folder} has no {TOKENIZER_FILE}, and its class {type(tokenizer).__name__} makes {decoded!r} "
            f"of {_SQL!r}: copy {TOKENIZER_FILE} from the model's source, or set data.tokenizer.path"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer so that transformers 4 and 5 give equal ids, under the name of the general class.

    An earlier tokenizer in the folder is replaced.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _OTHER_FILES:
        (folder / name).unlink(missing_ok=True)
    for path in (folder / MORE_TEMPLATES).glob("*.jinja"):
        path.unlink()
    if backend is None:  # tokenizers written in Python have no tokenizer.json
        tokenizer.save_pretrained(str(folder))
        return
    backend.no_padding()
    backend.no_truncation()
    backend.save(str(folder / TOKENIZER_FILE))
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = [{"name": name, "template": text} for name, text in template.items()]
    elif template:  # some versions read the file, some the field
        (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": template or None,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **{name: getattr(tokenizer, name) for name in _COPIED_FIELDS},
        **_special_fields(tokenizer, _added_tokens(backend)),
        **_prefix_field(backend),
    }
    fields["model_max_length"] = fields["model_max_length"] if fields["model_max_length"] < _MAX_LENGTH else None
    _write_fields(folder / FIELDS_FILE, {name: value for name, value in fields.items() if value is not None})


def replace_chat_template(folder: Path, template: str) -> None:
    """Write a chat template for other programs to a saved tokenizer's folder.

    The original template stays in the field `OWN_TEMPLATE`, which `read_tokenizer` reads.
    """
    path = folder / FIELDS_FILE
    fields = _read_json(path)
    original = _chat_template(folder, fields)
    replaced: Any = template
    if isinstance(original, Mapping):
        replaced = [{"name": name, "template": text} for name, text in {**original, "default": template}.items()]
    if not isinstance(original, Mapping) or (folder / TEMPLATE_FILE).is_file():  # Python tokenizers have files only
        (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")
    fields |= {"chat_template": replaced, OWN_TEMPLATE: original}
    _write_fields(path, fields)


def _write_fields(path: Path, fields: Fields) -> None:
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _special_fields(tokenizer: Tokenizer, added: Collection[str]) -> Record:
    """Return the fields of special tokens: their roles, and those without a role.

    Roles that only this model has are a mapping in `extra_special_tokens`, because transformers 4 accepts no list
    there. Roles other than bos and eos are omitted if their token is not an added token.
    """
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if _is_single_token(token)}
    tokens = {name: text for name, text in tokens.items() if text in added or name in ("bos_token", "eos_token")}
    further_roles = {name: text for name, text in tokens.items() if name not in _ROLES}
    without_role = [str(token) for token in getattr(tokenizer, "extra_special_tokens", ())]
    roles: Record = {name: text for name, text in tokens.items() if name in _ROLES}
    return roles | {"extra_special_tokens": further_roles or None, "additional_special_tokens": without_role or None}


def _is_single_token(token: Any) -> bool:
    return token is not None and not isinstance(token, list) and bool(str(token))


def _prefix_field(backend: Any) -> dict[str, bool]:
    """Return `add_prefix_space` of tokenizer.json as a field, because transformers 4 overrides it by the field."""
    pre_tokenizer = backend.pre_tokenizer
    state = json.loads(pre_tokenizer.__getstate__()) if pre_tokenizer is not None else {}
    add_prefix_space = state.get("add_prefix_space")
    return {} if add_prefix_space is None else {"add_prefix_space": add_prefix_space}


def has_equal_tokens(first: Any, second: Any) -> bool:
    """Return whether two tokenizers of one vocabulary give equal ids.

    Compared are test texts, the text of each token, and texts that contain an added token of `second`.
    """
    added = [str(token) for token in second.added_tokens_decoder.values()]
    texts = [*_TEXTS, *second.batch_decode([[i] for i in range(len(second))])]
    texts += [text for token in added for text in (f"a{token}b", f" a {token} b")]
    first_ids, second_ids = (tokenizer(texts, add_special_tokens=False)["input_ids"] for tokenizer in (first, second))
    return bool(first_ids == second_ids)


def misreading_class(folder: Path, tokenizer: Tokenizer) -> str:
    """Return the name of the class that AutoTokenizer uses if its ids differ from the saved tokenizer's; else "".

    For some families, such as qwen2, transformers 5 ignores the class that the folder names.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    auto_tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return "" if has_equal_tokens(auto_tokenizer, tokenizer) else type(auto_tokenizer).__name__
