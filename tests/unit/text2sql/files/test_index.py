"""The index of huge files locates every record, for any text in it, and is reused without a second scan."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.text2sql.files import index as module
from jaxrl_sql.text2sql.files.index import open_index, scan
from jaxrl_sql.types import InputError

_VALUES = st.recursive(
    st.none() | st.integers() | st.text('{}[]"\\,: \nä'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('{}"\\a'), inner, max_size=3),
    max_leaves=6,
)
_RECORDS = st.lists(st.dictionaries(st.text('{}"\\b'), _VALUES, max_size=3), max_size=8)


def scanned_records(path: Path) -> list[Any]:
    with path.open("rb") as file:
        raw = file.read()
    return [json.loads(raw[int(start) : int(start) + int(size)]) for start, size in scan(path)]


@settings(deadline=None, max_examples=60)
@given(records=_RECORDS, indent=st.sampled_from([None, 0, 2]), bom=st.booleans(), chunk=st.sampled_from([1, 3, 7, 64]))
def test_records_of_a_list_are_indexed(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], indent: int | None, bom: bool, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("list") / "data.json"
    text = json.dumps(records, indent=indent, ensure_ascii=False)
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        assert scanned_records(path) == records


@settings(deadline=None, max_examples=40)
@given(
    records=_RECORDS, bom=st.booleans(), chunk=st.sampled_from([1, 5, 64]), end=st.sampled_from(["", "\n", "\r\n \n"])
)
def test_records_of_lines_are_indexed(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], bom: bool, chunk: int, end: str
) -> None:
    path = tmp_path_factory.mktemp("lines") / "data.jsonl"
    text = "\n\n".join(json.dumps(record, ensure_ascii=False) for record in records) + end
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        assert scanned_records(path) == records


def test_truncated_list_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('[{"a": 1}, {"b": "}')
    with pytest.raises(InputError, match=r"data\.json: the list is truncated after 1 records"):
        open_index(path)
    with pytest.raises(InputError, match="No such file"):
        open_index(tmp_path / "none.json")


def test_index_is_stored_next_to_the_file_and_rebuilt_after_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n{"a": "ä"}\n')
    index = open_index(path)
    assert (len(index), index[1], [element["a"] for element in index]) == (2, {"a": "ä"}, [1, "ä"])
    index.close()
    remaining = list(tmp_path.glob(".data.jsonl.*.npy"))
    assert len(remaining) == 1
    assert remaining[0].stat().st_mode & 0o777 == 0o644
    other = tmp_path / "data.jsonl.bak"
    other.write_text("{}")
    open_index(other)
    with monkeypatch.context() as patch:
        patch.setattr(module, "scan", lambda _: pytest.fail("looked through again"))
        again = open_index(path)
        assert again[0] == {"a": 1}
        assert isinstance(again._ranges, np.memmap)
    before, moved = index.identity, tmp_path / "moved.jsonl"
    moved.write_bytes(path.read_bytes())
    assert open_index(moved).identity == before
    moved.write_bytes(b'{"a": "\xe9"}\n{"a": "\xc3\xa9"}\n')
    assert [entry["a"] for entry in open_index(moved)] == ["é", "é"]
    assert open_index(moved).identity != before
    path.write_text('{"a": 3}\nnot\n{"a": 1}\n[1]\n' + "9" * 5_000 + "\n")
    index = open_index(path)
    assert (len(index), index[0]) == (5, {"a": 3})
    for broken in (1, 4):
        with pytest.raises(InputError, match=f"record {broken}: not JSON"):
            index[broken]
    with pytest.raises(InputError, match="record 3: expected an object, found list"):
        index[3]
    ours = [item for item in tmp_path.glob(".data.jsonl.*.npy") if ".bak." not in item.name]
    assert (len(ours), len(list(tmp_path.glob(".data.jsonl.bak.*.npy")))) == (1, 1)
    # A partly written file is no index.
    ours[0].write_bytes(b"")
    assert len(open_index(path)) == 5


@pytest.mark.parametrize("named", ["~/cache", "off"])
def test_read_only_folder_has_its_index_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    path = tmp_path / "data" / "data.jsonl"
    path.parent.mkdir()
    path.write_text('{"a": 1}\n')
    real = module._keep

    def refuse(prefix: Path, identity: str, ranges: np.ndarray) -> Path:
        if prefix.parent == path.parent:
            raise PermissionError(13, "Permission denied")
        return real(prefix, identity, ranges)

    monkeypatch.setattr(module, "_keep", refuse)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAXRL_SQL_CACHE", named)
    monkeypatch.chdir(tmp_path)
    assert open_index(path)[0] == {"a": 1}
    assert [item.name for item in path.parent.iterdir()] == ["data.jsonl"]
    if named == "off":
        assert [entry.name for entry in tmp_path.iterdir()] == ["data"]
        assert open_index(path)[0] == {"a": 1}
        return
    monkeypatch.setattr(module, "scan", lambda _: pytest.fail("looked through again"))
    assert open_index(path)[0] == {"a": 1}
    assert len(list((tmp_path / "cache").iterdir())) == 1
