"""The folder that `jaxrl-sql view` writes, read like the page reads it, and its errors."""

from __future__ import annotations

import base64
import gzip
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.commands.view import main
from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.report.folder import CONSTANT, JUDGED, NO_SIGNAL, SUSPICIOUS, AnswersFolder, is_suspicious
from jaxrl_sql.report.groups import list_chunks, open_result_folder, read_chunk
from jaxrl_sql.report.html import script_json
from jaxrl_sql.report.view.folder import View
from jaxrl_sql.report.view.judging import Judge, JudgeRequest, reads_no_table
from jaxrl_sql.report.view.serving import serve_folder
from jaxrl_sql.runtime.rollouts import FOLDER, RolloutWriter, list_shards
from jaxrl_sql.text2sql.env.address import parse_address
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.evals.side_by_side import side_by_side, write_comparison
from jaxrl_sql.training.keep import question_of
from jaxrl_sql.types import Example, InputError


def data(out: Path, name: str) -> Any:
    text = (out / "data" / f"{name}.js").read_text(encoding="utf-8")
    result = re.fullmatch(r'jx\("([\w-]+)","([A-Za-z0-9+/=]*)"\);\n', text)
    assert result is not None
    assert result[1] == name
    return json.loads(zlib.decompress(base64.b64decode(result[2]), wbits=-15))


def groups(out: Path) -> list[dict[str, Any]]:
    return [item for path in sorted((out / "data").glob("part-*.js")) for item in data(out, path.stem)]


@pytest.fixture
def run(view_runs: ModuleType, tmp_path: Path) -> Path:
    return view_runs.write_run(tmp_path / "run")


def test_page_has_every_answer_with_verdict_and_rows(
    view_runs: ModuleType, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run)]) == 0
    out = run / "view"
    assert capsys.readouterr().out == f"{out / 'index.html'}\n"
    result = {(group["step"], group["uid"]): group for group in groups(out)}
    assert sorted(result) == sorted(
        [
            (0, "e1"),
            (0, "e2"),
            (9, "e1"),
            (9, "e2"),
            (1, "q1"),
            (2, "q2"),
            (1, view_runs.HOSTILE),
            (2, view_runs.HOSTILE),
        ]
    )
    right, wrong = result[1, "q1"]["answers"]
    assert (right["advantage"], wrong["advantage"]) == (0.5, -0.5)
    assert right["verdict"]["scores"]["bird"] == right["verdict"]["scores"]["refined"] == 1.0
    assert wrong["verdict"]["scores"]["bird"] == 0.0
    assert wrong["verdict"]["results"]["pairs"][0] == [None, ["cup"], []]
    assert [turn[0] for turn in wrong["turns"]] == ["assistant", "environment", "assistant"]
    known, broken, none = result[1, view_runs.HOSTILE]["answers"]
    assert known["verdict"]["constant"]
    assert known["verdict"]["reasons"] == ["duplicates"]
    assert "error" in broken["verdict"]["results"]["prediction"]
    assert "verdict" not in none
    assert "CREATE TABLE" in data(out, "schemas")["shop"]
    assert data(out, "tokens") == {"0": "SELECT", "1": " 1", "2": "<b>", "3": "\n"}


def test_index_flags_answers_for_filters(view_runs: ModuleType, run: Path) -> None:
    main([str(run)])
    index, texts = data(run / "view", "index"), data(run / "view", "texts")
    uids = [index["uids"][at] for at in index["columns"]["question"]]
    flags = dict(zip(uids, index["columns"]["flags"], strict=True))
    assert flags[view_runs.HOSTILE] == SUSPICIOUS | CONSTANT | JUDGED
    assert flags["q1"] == JUDGED
    right = {uid: [] for uid in uids}
    flat = iter(index["right"])
    for uid, count in zip(uids, index["columns"]["count"], strict=True):
        right[uid] += [next(flat) for _ in range(count)]
    assert (right["q1"], right["e1"], right[view_runs.HOSTILE]) == ([1, 0], [1, 0], [1, 0, 0] * 2)
    assert len(index["rewards"]) == sum(index["columns"]["count"]) == 14
    assert sum(index["parts"]) == len(uids) == len(texts["sqls"]) == 8
    assert view_runs.HOSTILE in texts["questions"]
    assert index["words"]["statuses"] == ["ok", "syntax_error", "no_sql"]
    head = data(run / "view", "head")["runs"][0]
    assert (head["answers"], head["steps"]) == (14, 9)
    (changed,) = head["changes"]
    assert (changed["better"], changed["worse"], changed["steps"]) == (1, 1, [0, 9])


def test_equal_rewards_have_no_signal_and_one_answer_is_no_group(view_runs: ModuleType) -> None:
    from jaxrl_sql.report.folder import row_of

    shown = {"db": "d", "hardness": ""}
    assert row_of(view_runs.group(1, "a", [view_runs.answer("x", 1.0)] * 2, **shown), 0).flags & NO_SIGNAL
    assert not row_of(view_runs.group(1, "a", [view_runs.answer("x", 1.0)], **shown), 0).flags & NO_SIGNAL


@pytest.mark.parametrize(
    ("fields", "is_right"),
    [
        ({"parts": {"correct": 1.0, "format": 0.0}, "reward": 0.1}, True),
        ({"parts": {"correct": 0.0, "format": 1.0}, "reward": 0.9}, False),
        ({"parts": {"style": 1.0}, "reward": 2.0}, None),
        ({"parts": {"correct": 1.0}, "reward": None}, None),
    ],
)
def test_answers_are_right_by_the_rule_and_not_by_status_or_reward(
    fields: dict[str, Any], is_right: bool | None, view_runs: ModuleType, tmp_path: Path
) -> None:
    writer = RolloutWriter(tmp_path, 100)
    writer.write("train", [view_runs.group(1, "a", [{**view_runs.answer("SELECT 1", 1.0), **fields}])])
    (tmp_path / "metrics.jsonl").write_text("")
    (chunk,) = list_chunks(open_result_folder(tmp_path))
    (answer,) = read_chunk(chunk).groups[0]["answers"]
    assert answer["right"] is is_right


@pytest.mark.parametrize(
    ("scores", "is_so"),
    [
        ({"bird": 1.0, "refined": 0.0, "test_suite": 1.0}, True),
        ({"bird": 1.0, "refined": 1.0, "test_suite": 0.0}, True),
        ({"bird": 1.0, "refined": 1.0, "test_suite": 0.0, "suite": 1.0}, False),
        ({"bird": 1.0, "refined": 1.0, "test_suite": 1.0, "suite": 0.0}, True),
        ({"bird": 0.0, "refined": 0.0}, False),
        ({"bird": 1.0}, False),
        ({}, False),
    ],
)
def test_suspicious_answers_pass_bird_and_fail_a_stricter_rule(scores: dict[str, float], is_so: bool) -> None:
    assert is_suspicious({"scores": scores}) == is_so


def test_query_without_a_table_is_flagged_constant() -> None:
    assert reads_no_table("SELECT 3")
    assert reads_no_table("SELECT 'a' UNION SELECT 'b'")
    assert not reads_no_table("SELECT (SELECT max(x) FROM t)")
    assert not reads_no_table("no SQL at all (")


def test_two_runs_are_compared(view_runs: ModuleType, run: Path, tmp_path: Path) -> None:
    other = view_runs.write_run(tmp_path / "other", steps=(1,))
    out = tmp_path / "out"
    assert main([str(run), str(other), "--out", str(out)]) == 0
    head, index = data(out, "head"), data(out, "index")
    assert head["title"] == "run and other"
    assert sorted(set(index["columns"]["run"])) == [0, 1]
    again = view_runs.write_run(tmp_path / "more" / "run", steps=(1,))
    assert main([str(run), str(again), "--out", str(out)]) == 0
    assert len({item["name"] for item in data(out, "head")["runs"]}) == 2


def test_evaluation_and_comparison_files_are_shown(view_runs: ModuleType, tmp_path: Path) -> None:
    first = view_runs.write_evaluation(tmp_path / "first", {"a": 1.0, "b": 0.0})
    cut = (first / "records.jsonl").read_text().replace('"finish_reason": "stop"', '"finish_reason": "length"', 1)
    (first / "records.jsonl").write_text(cut)
    second = view_runs.write_evaluation(tmp_path / "second", {"a": 0.0, "b": 0.0})
    (first / "config.yaml").write_text(
        "recipe: arctic\nseed: 4\nmodel: {checkpoint: M}\nevaluate: {data: [D, E], predictions: []}\n"
    )
    (second / "config.yaml").write_text(
        "seed: 0\nevaluate: {model: named, base_url: 'http://me:key@127.0.0.1:8000/v1'}\n"
    )
    out = tmp_path / "out"
    assert main([str(first), str(second), "--out", str(out)]) == 0
    shown = groups(out)
    assert [(item["phase"], item["uid"], item["answers"][0]["reward"]) for item in shown] == [
        ("eval", "a", 1.0), ("eval", "b", 0.0), ("eval", "a", 0.0), ("eval", "b", 0.0),
    ]  # fmt: skip
    assert shown[0]["answers"][0]["verdict"]["results"]["pairs"][0] == [["cup"], ["pot"], [0]]
    assert [entry["answers"][0]["finish_reason"] for entry in shown] == ["length", "stop", "stop", "stop"]
    assert [bool(flags & 16) for flags in data(out, "index")["columns"]["flags"]] == [True, False, False, False]
    assert shown[0]["prompt"] == "CREATE TABLE item"
    (head, other) = data(out, "head")["runs"]
    assert dict(head["ran"]) == {"folder": "first", "recipe": "arctic", "model": "M", "data": "D, E", "seed": "4"}
    assert dict(other["ran"]) == {"folder": "second", "model": "named at 127.0.0.1:8000", "seed": "0"}
    rules = head["rules"]
    assert rules == [{"set": "dev", "rule": "bird", "mean": 0.5, "low": 0.2, "high": 0.8}]
    write_comparison(side_by_side(first, second), tmp_path / "compared")
    assert main([str(tmp_path / "compared"), "--out", str(out)]) == 0
    (changed,) = groups(out)
    assert [answer["from"] for answer in changed["answers"]] == ["first: first", "second: second"]
    assert [element["reward"] for element in changed["answers"]] == [1.0, 0.0]
    assert [answer["finish_reason"] for answer in changed["answers"]] == ["length", "stop"]
    whole = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert f"50.0% of the answers in {first} are truncated at the token limit" in whole["notes"]
    assert "ok (length) → ok" in (tmp_path / "compared" / "compare.md").read_text()


def test_answers_of_deleted_databases_are_shown_unjudged(run: Path) -> None:
    (run / "shop.sqlite").unlink()
    assert main([str(run)]) == 0
    head = data(run / "view", "head")
    assert head["notes"] == [f"Not judged: {run / 'shop.sqlite'} is not there."]
    result = [group for group in groups(run / "view") if group["uid"] == "q1"]
    assert result[0]["answers"][0]["verdict"] == {"error": f"not judged: {run / 'shop.sqlite'} is not there"}


# SQL that SQLite cannot run, and its rows.
ON_ENGINES = {
    "postgresql": ("SELECT name FROM item WHERE price::int > 3 ORDER BY id", [["pot"]]),
    "mysql": ("SELECT LEFT(name, 2) FROM item ORDER BY id LIMIT 0, 2", [["cu"], ["po"]]),
    "duckdb": ("FROM item SELECT name WHERE price > 3", [["pot"]]),
}


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, server_database: Callable[[str, str], Any], monkeypatch: Any
) -> tuple[str, str]:
    """Return an engine's dialect and the database URL; the password is in the environment only."""
    dialect: str = request.param
    script = "CREATE TABLE item(id integer PRIMARY KEY, name text, price double precision);"
    script += "INSERT INTO item VALUES (1, 'cup', 2.5), (2, 'pot', 9.0);"
    if dialect == "duckdb":
        with pytest.importorskip("duckdb").connect(str(tmp_path / "shop.duckdb")) as connection:
            connection.execute(script)
        return dialect, f"duckdb:{tmp_path / 'shop.duckdb'}"
    url: str = server_database("mariadb" if dialect == "mysql" else dialect, script).reader
    monkeypatch.setenv({"postgresql": "PGPASSWORD", "mysql": "MYSQL_PWD"}[dialect], parse_address(url).password)
    return dialect, url


@pytest.mark.parametrize(
    "place",
    ["duckdb", *(pytest.param(name, marks=pytest.mark.servers) for name in ("postgresql", "mysql"))],
    indirect=True,
)
def test_answers_of_server_databases_have_verdicts_and_rows(
    view_runs: ModuleType, run: Path, place: tuple[str, str], tmp_path: Path
) -> None:
    dialect, url = place
    gold, rows = ON_ENGINES[dialect]
    wrong = "SELECT name FROM item WHERE id = 1"
    example = Example("s1", "shop", str(run / "shop.sqlite"), "Which?", gold, dialect=dialect, engine_url=url)
    record = view_runs.group(3, "s1", [view_runs.answer(gold, 1.0), view_runs.answer(wrong, 0.0)])
    RolloutWriter(run, 1000).write("train", [record | question_of(example)])
    assert main([str(run), "--out", str(tmp_path / "out")]) == 0
    (result,) = (group for group in groups(tmp_path / "out") if group["uid"] == "s1")
    right, other = (answer["verdict"] for answer in result["answers"])
    assert (right["scores"]["bird"], other["scores"]["bird"]) == (1.0, 0.0)
    assert [mine for mine, _, _ in right["results"]["pairs"]] == rows
    assert other["results"]["pairs"][0][2], "a different cell is marked"
    assert "item" in data(tmp_path / "out", "schemas")["shop"]
    password = parse_address(url).password if dialect != "duckdb" else url.rpartition("/")[0]
    for path in tmp_path.joinpath("out/data").iterdir():
        assert password not in json.dumps(data(path.parents[1], path.stem) if path.stem != "stamp" else "")
    if dialect != "duckdb":
        assert password not in "".join(shard.read_text() for shard in pieces_text(run))


def pieces_text(run: Path) -> Iterator[Path]:
    """Write uncompressed shards next to the shards of a run."""
    for shard in sorted((run / FOLDER).glob("train-*")):
        plain = run / f"{shard.name}.txt"
        plain.write_bytes(gzip.decompress(shard.read_bytes()))
        yield plain


def test_unreachable_server_is_reported_without_its_address(view_runs: ModuleType, run: Path, tmp_path: Path) -> None:
    url = "postgresql://someone@127.0.0.1:1/shop"
    example = Example(
        "s1", "shop", str(run / "shop.sqlite"), "Which?", "SELECT 1", dialect="postgresql", engine_url=url
    )
    record = view_runs.group(3, "s1", [view_runs.answer("SELECT 1", 1.0)])
    RolloutWriter(run, 1000).write("train", [record | question_of(example)])
    assert main([str(run), "--out", str(tmp_path / "out")]) == 0
    (result,) = (group for group in groups(tmp_path / "out") if group["uid"] == "s1")
    assert result["answers"][0]["verdict"] == {"error": "not judged: shop of PostgreSQL cannot be reached"}
    assert data(tmp_path / "out", "head")["notes"] == ["Not judged: shop of PostgreSQL cannot be reached."]
    assert "someone" not in json.dumps([result, data(tmp_path / "out", "head")])


@pytest.mark.servers
def test_server_stopped_during_judging_gives_no_verdict(start_server: Callable[[str, str], Any]) -> None:
    server = start_server("postgresql", "CREATE TABLE item(id int); INSERT INTO item VALUES (1);")
    gold = "SELECT id FROM item"
    example = Example("s1", "shop", "", "Which?", gold, dialect="postgresql", engine_url=server.reader)
    with make_executor(ExecutorConfig()) as executor:
        judge = Judge(executor, 100, 60.0)
        judge.judge([JudgeRequest(example, gold)])
        server.stop()
        judge.judge([JudgeRequest(example, gold), JudgeRequest(example, "SELECT 1")])
    assert judge.num_judged == 1
    assert judge.missing == ["shop of PostgreSQL cannot be reached"]


def test_limit_on_judged_answers_is_reported(run: Path) -> None:
    assert main([str(run), "--judge", "1"]) == 0
    (note,) = data(run / "view", "head")["notes"]
    assert note.startswith("1 of 10 distinct answers were judged")
    assert main([str(run), "--judge", "0"]) == 0
    assert data(run / "view", "head")["notes"] == []
    assert not any("verdict" in answer for group in groups(run / "view") for answer in group["answers"])


def test_running_run_is_updated(view_runs: ModuleType, run: Path, tmp_path: Path) -> None:
    shown = View([open_result_folder(run)], tmp_path / "out", None)
    assert shown.update(is_live=True)
    assert not shown.update(is_live=True)
    first = data(tmp_path / "out", "index")
    view_runs.add_step(run, 3)
    assert shown.update(is_live=True)
    more = data(tmp_path / "out", "index")
    assert len(more["columns"]["step"]) == len(first["columns"]["step"]) + 2
    assert (tmp_path / "out" / "data" / "stamp.js").read_text() == "jxStamp(2, true);\n"
    assert shown.update(is_live=False)
    assert (tmp_path / "out" / "data" / "stamp.js").read_text() == "jxStamp(3, false);\n"


def test_evicted_pieces_keep_their_positions(view_runs: ModuleType, tmp_path: Path) -> None:
    run = view_runs.write_run(tmp_path / "run", steps=range(1, 4), keep=20)
    shown = View([open_result_folder(run)], tmp_path / "out", None)
    shown.update(is_live=True)
    for step in range(4, 12):
        view_runs.add_step(run, step, keep=20)
    assert list_shards(run / FOLDER, "train")[0].number > 0
    shown.update(is_live=True)
    index = data(tmp_path / "out", "index")
    assert 0 in index["parts"]
    assert max(index["columns"]["step"]) == 11
    assert any("keep_rollouts" in note for note in data(tmp_path / "out", "head")["notes"])


def test_truncated_piece_is_reported_and_the_rest_is_shown(run: Path) -> None:
    shard = list_shards(run / FOLDER, "train")[0].path
    shard.write_bytes(shard.read_bytes()[:-40])
    assert main([str(run)]) == 0
    assert data(run / "view", "head")["notes"] == [f"A part of {shard.name} cannot be read and is omitted."]
    assert {group["step"] for group in groups(run / "view")} == {0, 1, 2, 9}


def line_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_unusable_folder_is_an_error_of_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "neither a run (metrics.jsonl)" in line_of(capsys)
    older = tmp_path / "older"
    older.mkdir()
    (older / "metrics.jsonl").write_text('{"step": 1}\n')
    assert main([str(older)]) == 2
    assert "the run kept no answers (run.keep_rollouts was 0" in line_of(capsys)
    (older / FOLDER).mkdir()
    assert main([str(older)]) == 2
    assert "no answers are left" in line_of(capsys)
    assert not (older / "view").exists()
    assert main([str(run), "--out", str(run)]) == 2
    assert "has other files: name an empty folder" in line_of(capsys)
    (tmp_path / "file").write_text("")
    assert main([str(run), "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in line_of(capsys)


def test_broken_evaluation_is_an_error_of_one_line(
    view_runs: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = view_runs.write_evaluation(tmp_path / "one", {"a": 1.0})
    whole = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(whole + whole[:-20])
    assert main([str(folder)]) == 2
    assert "records.jsonl:2: not a valid question record" in line_of(capsys)
    (folder / "records.jsonl").write_text(whole)
    (folder / "metrics.json").write_text("[")
    assert main([str(folder)]) == 2
    assert "metrics.json: no numbers of an evaluation" in line_of(capsys)
    compared = tmp_path / "compared"
    compared.mkdir()
    (compared / "compare.json").write_text("{}")
    assert main([str(compared)]) == 2
    assert "not a comparison of two evaluations" in line_of(capsys)
    (compared / "compare.json").write_text(json.dumps({"own": "bird", "changed": []}))
    assert main([str(compared)]) == 2
    assert "no question has different results" in line_of(capsys)


def test_port_in_use_is_an_error_of_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main([str(run), "--serve", str(port)]) == 2
    assert f"--serve {port}: Address already in use: choose another port" in line_of(capsys)
    assert main([str(run), "--serve", "99999"]) == 2
    assert "--serve 99999" in line_of(capsys)


def test_server_rejects_foreign_hosts_and_other_files(run: Path) -> None:
    main([str(run)])
    (run / "view/notes.txt").write_text("somebody's own")
    with serve_folder(run / "view", 0) as address:
        with urllib.request.urlopen(f"{address}index.html") as result:  # noqa: S310 - loopback
            assert b"Content-Security-Policy" in result.read()
            assert result.headers["Cache-Control"] == "no-store"
        other = urllib.request.Request(f"{address}index.html", headers={"Host": "evil.example"})  # noqa: S310
        others = ("../config.yaml", "notes.txt", "page/../notes.txt", "%00", "page/%00")
        missing = [(f"{address}{item}", 404) for item in others]
        for request, code in ((other, 403), (f"{address}data/", 404), *missing):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)  # noqa: S310
            assert refused.value.code == code
            refused.value.close()
    with pytest.raises(InputError, match="neither a run"):
        open_result_folder(run / "view")


def test_foreign_output_folder_is_never_served(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/secret").write_text("")
    served: list[Path] = []
    monkeypatch.setattr("jaxrl_sql.report.view.serving.serve_folder", lambda folder, _port: served.append(folder))
    assert main([str(run), "--out", str(tmp_path / "home"), "--serve", "0"]) == 2
    assert "home has other files" in line_of(capsys)
    assert served == []


def test_view_command_needs_no_jax(run: Path) -> None:
    program = (
        "import sys; from jaxrl_sql.commands.view import main; code = main(sys.argv[1:]); "
        "assert 'jax' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_large_integers_are_not_rounded(tmp_path: Path) -> None:
    """JavaScript numbers are doubles: integers over 2^53 are text in a page's data."""
    large, exact = 9007199254740993, 9007199254740991
    cells = [large, -large, exact, 0.1234567890123456789, 1e300, True, None, "9007199254740993"]
    shown = [str(large), str(-large), *cells[2:]]
    assert json.loads(script_json({"rows": [cells]})) == {"rows": [shown]}
    AnswersFolder(tmp_path / "out").write_data("tokens", {"rows": [cells]})
    assert data(tmp_path / "out", "tokens") == {"rows": [shown]}
