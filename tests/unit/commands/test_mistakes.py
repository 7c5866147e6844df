"""Each user mistake gets exit code 2 and one line that names the mistake and the fix."""

from __future__ import annotations

import json
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.__main__ import commands, main

TAUGHT = "data.source=folder data.dir=@/data data.train=train"
MODEL = "model.checkpoint=configs/quickstart_start"
DATA = f"{TAUGHT} {MODEL} data.evals=[dev] run.dir=@/new run.display=none"
ASKED = "--endpoint http://127.0.0.1:9/v1 data.source=folder data.train=train data.dir"
CHOSEN = "--config configs/verbal.yaml verbal.out=@/new run.display=none"

Capture = pytest.CaptureFixture[str]

# Per command: arguments, and parts of the error. @ is a folder of valid and invalid files (`inputs`).
MISTAKES: dict[str, list[tuple[str, str]]] = {
    "quickstart": [
        ("--steps 3", "settings have no dashes: sft.steps=VALUE or grpo.steps=VALUE or second_stage.steps=VALUE"),
        ("--dry-rnu", "the nearest is --dry-run"),
        ("grpo.step=3", "unknown key grpo.step; the nearest is grpo.steps"),
        ("sft.steps=x", "sft.steps must be a whole number, not 'x'"),
        ("sft.databases=0", "sft.databases=0 must be above 0"),
        ("--resume @/none", "@/none: no run found; run.dir=@/none run.resume=true starts"),
        ("run.dir=@/run run.display=none", "@/run already holds a run: choose another run.dir"),
        ("run.dir=", "run.dir is empty; it names the output folder of the run"),
        ("run.display=fancy", "run.display='fancy' is not one of auto, rich, plain, none"),
        ("--config @/broken.yaml", "@/broken.yaml:3: not YAML"),
    ],
    "train": [
        ("", "no arguments: start with --config FILE"),
        ("--confg @/typo.yaml", "unrecognized arguments: --confg; the nearest is --config"),
        ("--config", "argument --config: expected one argument"),
        ("--config @/none.yaml", "@/none.yaml: No such file or directory"),
        ("--config @/folder", "@/folder: Is a directory"),
        ("--config @/list.yaml", "@/list.yaml: expected `key: value` lines"),
        ("--config @/typo.yaml", "@/typo.yaml: unknown key grpo.step; the nearest is grpo.steps"),
        ("grpo.steps", "'grpo.steps' is not of the form key.sub=value"),
        ("grpo=3", "grpo is a section and needs keys below it"),
        ("model.remat=often", "model.remat='often': unknown 'often'; must be none, full, or a list"),
        ("model.remat=query,kye", "unknown 'kye'; must be none, full"),
        ("model.compute_dtype=float17", "is not one of same, float32, bfloat16"),
        (f"{DATA} recipe=artic", "recipe='artic' is not one of arctic"),
        (f"{DATA} data.dir=@/none", "@/none: no such folder"),
        (f"{DATA} data.dir=@/none.csv", "@/none.csv: no such file"),
        (f"{DATA} data.dir=@/good.sqlite", "@/good.sqlite: a folder is required, not a file: put questions next to"),
        (f"{DATA} data.train=trian", "no set or split 'trian' is in it; sets are in the folders"),
        (f"{DATA} data.train=broken", "@/data/broken/questions.jsonl:2: not JSON"),
        (f"{DATA} data.train=nothing", "@/data/nothing/questions.jsonl: no usable question (the file is empty"),
        (f"{DATA} run.dir=@/run", "@/run already holds a run"),
        (f"{DATA} run.dir=@/good.sqlite", "run.dir: @/good.sqlite cannot be written: File exists"),
        (f"{DATA} model.checkpoint=@/none", "model @/none: no such folder or file"),
        (f"{DATA} model.checkpoint=@/foldr", "model @/foldr: no such folder or file; the nearest is @/folder"),
        (f"{DATA} data.evals=[]", "data.evals is empty; name at least one split to evaluate on, as runs do"),
        (f"{DATA} model.checkpoint=@/bare", "@/bare: no config.json"),
        (f"{DATA} model.checkpoint=@/wrong", "model_type is 'bert'; valid are"),
        (f"{DATA} data.tokenizer.path=@/folder", "tokenizer: @/folder has no tokenizer.json or"),
        ("--resume @/none", "@/none: no config.yaml there, so no run to resume"),
    ],
    "sft": [
        ("--confg @/typo.yaml", "the nearest is --config"),
        ("--config @/none.yaml", "No such file or directory"),
        ("sft.stpes=3", "unknown key sft.stpes; the nearest is sft.steps"),
        ("sft.steps=x", "sft.steps must be a whole number"),
        (f"{DATA} sft.steps=0", "sft.epochs=0: set one of them"),
        ("sft.loss_on=words", "sft.loss_on='words' is not one of answer, text"),
        (f"sft.steps=2 {DATA} data.dir=@/none", "no such folder"),
        (f"sft.steps=2 {DATA} data.train=broken", "questions.jsonl:2: not JSON"),
        (f"sft.steps=2 {DATA} run.dir=@/run", "already holds a run"),
        (f"sft.steps=2 {DATA} data.traces=@/none.jsonl", "data.traces: @/none.jsonl: no such file or folder"),
        (f"sft.steps=2 {DATA} data.traces=@/broken.jsonl", "@/broken.jsonl:2: not JSON"),
        ("--resume @/folder", "no config.yaml there"),
    ],
    "doctor": [("--verbose", "unrecognized arguments: --verbose"), ("here", "unrecognized arguments: here")],
    "plan": [
        ("", "required: --topology"),
        ("--topology", "argument --topology: expected one argument"),
        ("--topolgy cpu", "required: --topology"),
        ("--topology cpu --mseh 1x1x1", "the nearest is --mesh"),
        (f"--topology v5q:4x4 {MODEL}", "--topology v5q:4x4: unknown; known are v5e:2x2"),
        (f"--topology cpu --mesh 2 {MODEL}", "expected DATAxFSDPxTENSOR, such as 1x1x1"),
        (f"--topology cpu --mesh 3x3x3 --compile none {MODEL}", "does not multiply to the 1 chip"),
        (f"--topology cpu --compile everything {MODEL}", "'everything' is not one of all, none, update"),
        (f"--topology cpu --answer-tokens @/none {MODEL}", "neither MEAN, MEAN:MAX, nor a file of numbers"),
        ("--topology cpu --config @/none.yaml", "@/none.yaml: No such file or directory"),
        ("--topology cpu grpo.stpes=3", "the nearest is grpo.steps"),
        ("--topology cpu model.checkpoint=@/folder --compile none", "@/folder: no config.json"),
    ],
    "launch": [
        ("", "--hosts"),
        ("slurm", "required: --hosts"),
        ("slurn --hosts 2", "invalid choice: 'slurn'"),
        ("slurm --hosts two", "invalid int value: 'two'"),
        (f"slurm --hosts 0 {MODEL} data.dir=d", "--hosts 0"),
        ("slurm --hosts 2 --config @/none.yaml", "@/none.yaml: No such file or directory"),
        ("slurm --hosts 2 grpo.step=3", "the nearest is grpo.steps"),
        ("slurm --hosts 2 --partiton long", "the nearest is --partition"),
        (f"slurm --hosts 2 --chips 8 mesh.fsdp=8 {MODEL} data.dir=d", "is not made up of 16 chips: set mesh.fsdp=16"),
        (f"jobset --hosts 2 {MODEL} data.dir=d", "--image is missing"),
        (f"tpu-vm --hosts 2 {MODEL} data.dir=d", "--accelerator and --zone are missing"),
    ],
    "view": [
        ("", "required: RUN"),
        ("@/none", "@/none: neither a run"),
        ("@/folder", "@/folder: neither a run"),
        ("@/good.sqlite", "@/good.sqlite: neither a run"),
        ("@/run", "the run kept no answers"),
        ("@/run @/none", "@/none: neither a run"),
        ("@/run --serve port", "argument --serve: invalid int value: 'port'"),
        ("@/run --judge many", "argument --judge: invalid int value: 'many'"),
        ("@/run --seconds soon", "invalid float value: 'soon'"),
        ("@/run --otu @/new", "the nearest is --out"),
    ],
    "report": [
        ("", "required: RUN"),
        ("@/none", "@/none: not a run folder: it has no metrics.jsonl"),
        ("@/folder", "@/folder: not a run folder: it has no metrics.jsonl"),
        ("@/good.sqlite", "not a run folder: it has no metrics.jsonl"),
        ("@/run @/none", "unrecognized arguments: "),
        ("@/run --out x", "unrecognized arguments: --out"),
    ],
    "evaluate": [
        ("", "set exactly one of: --predictions FILE"),
        ("--data", "argument --data: expected one argument"),
        ("--dta @/data/dev", "the nearest is --data"),
        ("--data @/none --predictions @/pred.json --out @/new", "@/none: no such folder"),
        ("--data @/good.sqlite --predictions @/pred.json --out @/new", "a folder is required, not a file"),
        ("--data @/data/dev --predictions @/none.json --out @/new", "@/none.json: No such file or directory"),
        ("--data @/data/dev --predictions @/folder --out @/new", "no <id>.sql in this folder"),
        ("--data @/data/dev --predictions @/empty.json --out @/new", "no predictions in it"),
        ("--data @/data/dev --predictions @/broken.jsonl --out @/new", "1 of 2 lines are not JSON (line 2)"),
        ("--data @/data/dev --predictions @/half.json --out @/new", "2 of 3 questions have no prediction"),
        ("--data @/data/dev --predictions @/pred.json --out @/run", "of another command"),
        ("--data @/data/dev --predictions @/pred.json --out @/good.sqlite", "cannot be written: File exists"),
        ("--data @/data/dev --predictions @/pred.json --out @/new evaluate.rules=[birdy]", "there are bird"),
        ("--data @/data/dev --predictions @/pred.json --out @/new evaluate.limt=3", "nearest is evaluate.limit"),
        ("--data @/data/dev --model @/none --out @/new", "model @/none: no such folder or file"),
        ("--data @/data/dev --model @/folder --out @/new run.display=none", "@/folder: no config.json"),
        ("--data @/data/dev --model @/run --out @/new", "the run has no model/ yet; it is written at the run's end"),
        ("--data @/data/dev --model @/bare --as artic --out @/new", "the nearest is arctic"),
        ("--compare @/none @/folder", "@/none: no finished evaluation"),
        ("--compare @/none", "argument --compare: expected 2 arguments"),
    ],
    "ask": [
        ("", "required: --model"),
        ("--model @/folder Who?", "--db is missing: no configuration, and no run of the model, names a database"),
        ("--model @/folder Who? data.database=@/none.sqlite", "data.database=@/none.sqlite: no such file: give the"),
        ("--model @/folder Who? data.database=@/folder", "@/folder is a folder of databases: give one by --db"),
        ("--model @/none --db @/good.sqlite Who?", "model @/none: no such folder or file"),
        ("--model @/foldr --db @/good.sqlite Who?", "model @/foldr: no such folder or file; the nearest is @/folder"),
        ("--model @/none --db @/none.sqlite Who?", "model @/none: no such folder or file"),
        ("--model @/folder --db @/none.sqlite Who?", "--db @/none.sqlite: no such file"),
        ("--model @/folder --db @/folder Who?", "--db @/folder: is a folder: name the file in it"),
        ("--model @/folder --db @/text.sqlite Who?", "not a readable SQLite database"),
        ("--model @/folder --db @/empty.sqlite Who?", "@/empty.sqlite: the database has no tables"),
        ("--model @/folder --db @/good.sqlite Who?", "@/folder: no config.json"),
        ("--model @/folder --db @/good.sqlite Who is it?", "expected one question, in quotes"),
        ("--model @/folder --db @/good.sqlite ''", "the question is empty"),
        ("--model @/folder --db oracle://x/y Who?", "oracle://x/y: not the URL of a database server: give postgresql://"),
        ("--model @/run --db @/good.sqlite Who?", "the run has no model/ yet"),
        ("--model @/folder --db @/good.sqlite --n many Who?", "argument --n: invalid int value: 'many'"),
        ("--model @/folder --db @/good.sqlite --explian Who?", "the nearest is --explain"),
        ("--model @/folder --db @/good.sqlite Who? evaluate.smples=3", "the nearest is evaluate.samples"),
        ("--model @/folder --db @/good.sqlite --stand-in @/good.sqlite Who?", "only for a --db of another engine"),
        ("--model @/folder --db @/good.sqlite --leave-out a Who?", "--leave-out a: requires a --db on a server"),
    ],
    "export": [
        ("", "expected one model, RUN or --model RUN"),
        ("@/none", "model @/none: no such folder or file"),
        ("@/folder", "@/folder: no config.json"),
        ("@/good.sqlite", "no config.json"),
        ("@/run", "the run has no model/ yet"),
        ("@/run --step 3", "no checkpoint of step 3; it has none"),
        ("@/run --step three", "argument --step: invalid int value: 'three'"),
        ("@/bare --dtype float8", "argument --dtype: invalid choice: 'float8'"),
        ("@/bare --gguf q3", "argument --gguf: invalid choice: 'q3'"),
        ("@/bare --otu x", "the nearest is --out"),
    ],
    "serve": [
        ("", "required: --model"),
        ("--model @/none", "model @/none: no such folder or file"),
        ("--model @/folder", "@/folder: no config.json"),
        ("--model @/bare", "@/bare: no config.json"),
        ("--model @/run", "the run has no model/ yet"),
        ("--model @/folder --port http", "argument --port: invalid int value: 'http'"),
        ("--model @/folder --queue 0", "--queue must be at least 1, not 0"),
        ("--model @/folder --adapter @/folder", "argument --adapter"),
        ("--model @/folder --prot 1", "the nearest is --port"),
        ("--model @/folder evaluate.smples=3", "the nearest is evaluate.samples"),
    ],
    "mcp": [
        ("", "--db is missing: no configuration, and no run of the model, names a database (data.database)"),
        ("data.database=@/folder", "@/folder is a folder of databases: give one by --db"),
        ("--db @/none.sqlite", "--db @/none.sqlite: no such file"),
        ("--db @/folder", "--db @/folder: is a folder: name the file in it"),
        ("--db @/text.sqlite", "file is not a database"),
        ("--db oracle://x/y", "not the URL of a database"),
        ("--db @/good.sqlite --max-rows 0", "--max-rows must be at least 1, not 0"),
        ("--db @/good.sqlite --max-rows many", "invalid int value: 'many'"),
        ("--db @/good.sqlite --model @/none", "model @/none: no such folder or file"),
        ("--db @/good.sqlite --modle x", "the nearest is --model"),
        ("--db @/good.sqlite --stand-in @/good.sqlite", "only for a --db of another engine"),
        ("--db @/good.sqlite --leave-out a", "a server; for the file @/good.sqlite"),
        ("--db @/good.sqlite evaluate.smples=3", "the nearest is evaluate.samples"),
    ],
    "verbal": [
        ("", "no arguments: start with"),
        ("--confg x", "the nearest is --config"),
        ("--config @/none.yaml", "No such file or directory"),
        ("--config @/broken.yaml", "@/broken.yaml:3: not YAML"),
        ("verbal.otu=3", "unknown key verbal.otu; the nearest is verbal.out"),
        ("verbal.judgings=x", "verbal.judgings"),
        (f"{CHOSEN} data.dir=@/none model.checkpoint=@/folder", "@/none"),
        (f"{CHOSEN} data.dir=@/good.sqlite model.checkpoint=@/folder", "@/good.sqlite"),
        (f"{CHOSEN} {DATA} model.checkpoint=@/none", "model @/none: no such folder or file"),
        (f"{CHOSEN} {DATA} model.checkpoint=@/folder verbal.out=@/good.sqlite", "@/good.sqlite"),
    ],
    "distill": [
        ("", "no arguments: start with"),
        ("--confg x", "the nearest is --config"),
        ("--config @/none.yaml", "No such file or directory"),
        ("--config @/list.yaml", "expected `key: value` lines"),
        ("distill.smples=3", "the nearest is distill.samples"),
        ("distill.samples=x", "distill.samples must be a whole number"),
        ("distill.samples=0", "distill.samples=0 must be above 0"),
        ("distill.wanted=9 distill.samples=2", "must be at most distill.samples"),
        ("data.source=folder data.dir=@/data", "distill.base_url is empty"),
        (f"{ASKED}=@/data distill.out=@/new", "distill.model is empty"),
        (f"{ASKED}=@/none distill.model=m distill.out=@/new", "@/none: no such folder"),
        (f"{ASKED}=@/data distill.model=m distill.out=@/good.sqlite run.display=none", "no folder can be created"),
    ],
    "data synth": [
        ("", "required: --out"),
        ("--out", "argument --out: expected one argument"),
        ("--otu @/new", "required: --out"),
        ("--out @/good.sqlite", "a file has this name"),
        ("--out @/new --seed x", "argument --seed: invalid int value: 'x'"),
        ("--out @/new --style prose", "argument --style: invalid choice: 'prose'"),
        ("--out @/new --db @/none.sqlite", "@/none.sqlite: no database file"),
        ("--out @/new --db @/folder", "@/folder: is a folder, not a database file"),
        ("--out @/new --db @/text.sqlite", "not a readable SQLite database"),
        ("--out @/new --db @/empty.sqlite", "nothing to ask about: it holds no tables"),
        ("--out @/new --train-dbs -3", "train_dbs must be at least 1, not -3"),
        ("--out @/data", "is not empty and holds no synth.json"),
        ("--out @/made --db @/good.sqlite --leave-out a", "requires a --db on a server; for the file @/good.sqlite"),
    ],
    "data prepare": [
        ("", "out is empty: it names the output folder (--out)"),
        ("--config @/none.yaml", "No such file or directory"),
        ("--config @/folder", "Is a directory"),
        ("--config @/broken.yaml", "@/broken.yaml:3: not YAML"),
        ("--config @/list.yaml", "expected `key: value` lines"),
        ("--config @/empty.yaml", "out is empty"),
        ("--config @/typo.yaml", "unknown key grpo"),
        ("--confg x", "the nearest is --config"),
        ("--out", "argument --out: expected one argument"),
        ("otu=x", "unknown key otu; the nearest is out"),
        ("out", "'out' is not of the form key.sub=value"),
    ],
    "data audit": [
        ("", "name sets with --train and --eval"),
        ("--train @/none", "@/none: no such folder"),
        ("--train @/none.csv", "@/none.csv: no such file"),
        ("--train @/folder", "no questions in a known format: it is empty"),
        ("--train @/good.sqlite", "a folder is required, not a file"),
        ("--trian @/data/train", "the nearest is --train"),
        ("--train @/data/broken", "questions.jsonl:2: not JSON"),
        ("--train @/data/nothing", "the file is empty"),
        ("--train @/data/train --eval @/none", "@/none: no such folder"),
        ("--train @/data/train --out @/good.sqlite", "@/good.sqlite is not a folder"),
        ("--train @/data/train extra", "extra: no such folder"),
    ],
    "data augment": [
        ("", "no arguments: start with"),
        ("--confg x", "the nearest is --config"),
        ("--config @/none.yaml", "No such file or directory"),
        ("--config @/broken.yaml", "not YAML"),
        ("augment.outt=x", "the nearest is augment.out"),
        ("augment.correct=true", "augment.correct must be a whole number"),
        ("augment.correct=2", "augment"),
        (f"{TAUGHT} data.dir=@/none augment.out=@/new", "@/none: no such folder"),
        (f"{TAUGHT} data.train=broken augment.out=@/new", "not JSON"),
        (f"{TAUGHT} augment.out=@/good.sqlite", "augment.out: @/good.sqlite is not a folder"),
        (f"{TAUGHT} augment.out=@/data/train", "is not empty and has no work.jsonl; choose another folder"),
    ],
    "data filter": [
        ("", "no arguments: start with"),
        ("--confg x", "the nearest is --config"),
        ("--config @/none.yaml", "No such file or directory"),
        ("--config @/list.yaml", "expected `key: value` lines"),
        ("filter.smples=x", "the nearest is filter.samples"),
        ("filter.samples=x", "must be a whole number"),
        ("filter.samples=4", "set model.checkpoint"),
        ("filter.low=0.9 filter.high=0.1", "must be at most filter.high"),
        (f"{DATA} data.dir=@/none filter.out=@/new", "@/none: no such folder"),
        (f"{DATA} filter.out=@/good.sqlite", "no folder can be created"),
        (f"{DATA} filter.out=@/new data.select.include_ids=@/none", "@/none: No such file or directory"),
        (f"{DATA} filter.out=@/new filter.noisy=@/folder", "@/folder: Is a directory"),
    ],
    "data copy": [
        ("", "required: --from, --to, --out"),
        ("--from @/data/train --out @/new", "required: --to"),
        ("--from @/data/train --to --out @/new", "argument --to: expected one argument"),
        ("--form @/data/train", "required: --from"),
        ("--from @/none --to duckdb:@/c --out @/new", "@/none: neither a folder nor a SQLite file"),
        ("--from @/folder --to duckdb:@/c --out @/new", "@/folder: no SQLite file"),
        ("--from @/data/train --to oracle://x --out @/new", "not the URL of a database"),
        ("--from @/data/train/databases --to postgresql://127.0.0.1:9/x --out @/new", "has no user: SCHEME"),
        ("--from @/data/train/databases --to duckdb:@/c --out @/good.sqlite", "choose another --out"),
        ("--from @/text.sqlite --to duckdb:@/c --out @/new", "@/text.sqlite: cannot be read (file is not a database)"),
        ("--from @/good.sqlite --to duckdb:@/c --out @/new --only other", "--only other: no such database"),
    ],
}  # fmt: skip
"""Of `doctor`, which takes nothing, and `report`, which takes a folder, there are no ten to make."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of mistaken and valid inputs."""
    at = tmp_path_factory.mktemp("inputs")
    for folder in ("folder", "bare", "wrong", "run", "data/nothing"):
        (at / folder).mkdir(parents=True)
    texts = {
        "text.sqlite": "This is no database, only a text of some length.\n" * 40,
        "empty.sqlite": "", "empty.yaml": "", "empty.json": "", "data/nothing/questions.jsonl": "",
        "broken.yaml": "grpo:\n  steps: [1, 2\n", "list.yaml": "- a\n- b\n", "typo.yaml": "grpo:\n  step: 3\n",
        "broken.jsonl": '{"id": "dev0", "sql": "SELECT 1"}\n{"id": "dev1", \n',
        "bare/model.safetensors": "nothing", "wrong/config.json": '{"model_type": "bert"}',
        "run/metrics.jsonl": '{"step": 1}\n', "run/config.yaml": "seed: 0\n",
        "pred.json": json.dumps({f"dev{i}": "SELECT 1" for i in range(3)}), "half.json": '{"dev0": "SELECT 1"}',
    }  # fmt: skip
    for name, text in texts.items():
        (at / name).write_text(text, encoding="utf-8")
    with closing(sqlite3.connect(at / "good.sqlite")) as connection:
        connection.executescript("CREATE TABLE person(id INTEGER PRIMARY KEY, name); INSERT INTO person VALUES(1, 'a')")
    for split in ("train", "dev", "broken"):
        database = at / "data" / split / "databases" / "d" / "d.sqlite"
        database.parent.mkdir(parents=True)
        database.write_bytes((at / "good.sqlite").read_bytes())
        questions = [
            {"id": f"{split}{i}", "db_id": "d", "question": f"Who {i}?", "sql": "SELECT name FROM person"}
            for i in range(3)
        ]
        lines = (
            [json.dumps(request) for request in questions]
            if split != "broken"
            else [json.dumps(questions[0]), '{"id": ']
        )
        (at / "data" / split / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return at


def error_line(line: str, inputs: Path, capsys: Capture, new: Path) -> str:
    """Return the one line that reports a mistake. Fail for another exit code or for other lines. `new` replaces @/new,
    and `inputs` replaces @.
    """
    arguments = [word.replace("@/new", str(new)).replace("@", str(inputs)) for word in shlex.split(line)]
    capsys.readouterr()
    try:
        code = main(arguments)
    except SystemExit as ended:  # argparse's format
        code = ended.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    shown = captured.err.replace(str(inputs), "@")
    assert code == 2, f"{line}\n{shown}"
    assert shown.startswith("error: "), f"{line}\n{shown}"
    assert shown.count("\n") == 1, f"{line}\n{shown}"
    return shown


def test_every_command_has_mistakes_listed() -> None:
    assert MISTAKES.keys() == commands().keys()
    assert all(len(result) >= 10 for name, result in MISTAKES.items() if name not in ("doctor", "report"))


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [(name, arguments, text) for name, result in MISTAKES.items() for arguments, text in result],
    ids=lambda value: value if " " not in value else value[:60],
)
def test_mistake_is_reported_in_one_line(
    command: str,
    arguments: str,
    message: str,
    inputs: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert message in error_line(f"{command} {arguments}", inputs, capsys, tmp_path / "new")
    assert not (tmp_path / "runs").exists(), "a mistake started a run"
    assert not (tmp_path / "data-cache").exists(), "a mistake wrote data"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tran", "there is no command tran; the nearest is train"),
        ("data snyth", "there is no command data snyth; the nearest is data synth"),
        ("--hepl", "No such option"),
    ],
)
def test_unknown_command_is_reported_in_one_line(arguments: str, message: str, inputs: Path, capsys: Capture) -> None:
    assert message in error_line(arguments, inputs, capsys, inputs / "new")
