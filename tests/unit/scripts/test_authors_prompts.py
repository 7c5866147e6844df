"""The authors' prompts as templates: small checkouts of each form with our text, and the comparison with templates."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxrl_sql.text2sql.prompts.template import read_template

SCRIPTS = Path(__file__).parents[3] / "scripts"

OMNISQL = '''
other = "{question} alone"
def prepare(data):
    input_prompt_template = """Engine: {db_engine}
Tables:
{db_details}
JSON is {{"a": 1}}, and a set is {{%}}.

{question}

Go.
"""
    return input_prompt_template.format(db_engine="SQLite", db_details=data["d"], question=data["q"])
'''
ARCTIC = '''
for data in input_dataset:
    begun = "Well. \\n<think>"
    form = """
Use tags.
<answer>
""".strip()
    messages = [
        {"role": "system", "content": ("Be" " exact.")},
        {
            "role": "user",
            "content": (
                f"""
Tables:
{data["db_desc"]}

{data["question"]}
{form}
    """.strip()
            ),
        },
    ]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt += begun
'''
THINK2SQL = {
    "base_think_system_prompt.jinja": "Reason:\n<reasoning>\n\n\n",
    "base_think_system_prompt_qwen.jinja": "Think:\n<think>",
    "base_think_user_prompt.jinja": "{{ question }} \n{{ evidence }}\nTables:\n{{ schema }}",
}
PAGE = """A prompt:

```text
Solve {question} in <solution>...</solution>.
...
{db_details}: 
CREATE TABLE x;
...
```
"""  # noqa: W291 - as in the page


def sql_r1(question: str, evidence: str, schema: str = "CREATE TABLE t (\n  a\n)") -> dict[str, Any]:
    text = (
        f"<|im_start|>system\nHelp.\nDatabase Schema:\n{schema}\n\nExternal Knowledge:\n{evidence}\n\n"
        f"SQL Complexity Level: Simple\n\nBy example {{%}}.\n<|im_end|>\n<|im_start|>user\n{question}\n<|im_end|>\n"
        "<|im_start|>assistant\n<think>"
    )
    truth = {"db_id": "d", "sql": "SELECT 1"}
    return {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": truth}}


def paverl(question: str, evidence: str) -> dict[str, Any]:
    text = (
        f"Database Engine:\nMySQL\n\nDatabase Schema:\n \n CREATE TABLE t (a);\n\nContext:\n{evidence or 'None'}\n\n"
        f"Question:\n{question}\n\nInstructions:\n- Few words.\n"
    )
    return {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "/x.csv"}}


def skyrl(question: str, evidence: str) -> dict[str, Any]:
    user = f"{{db_details}}:CREATE TABLE t (a);\n {{external_knowledge}}: {evidence};\n {{question}}: {question}"
    messages = [{"role": "system", "content": "\nSolve {question}.\n"}, {"role": "user", "content": user}]
    return {"prompt": messages, "reward_spec": {"ground_truth": "SELECT 1"}}


def write_rows(path: Path, make: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [make("Which a?", "A hint; two."), make("Which {{ b }}?", "")]
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_checkout(folder: Path, name: str) -> Path:
    texts = {
        "omnisql": {"train_and_evaluate/process_dataset.py": OMNISQL},
        "sql_r1_evaluation": {"src/utils/prepare_input_seq.py": OMNISQL.replace("Go.", "Go on.")},
        "arctic": {"project/eval/infer.py": ARCTIC, "project/eval/other.py": "messages = [1, {}]"},
        "think2sql": {f"prompts/{file}": text for file, text in THINK2SQL.items()},
        "skyrl_sql": {},
        "skyrl_page": {"docs/multi.mdx": PAGE},
    }
    for file, text in texts.get(name, {}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    rows = {"sql_r1": sql_r1, "paverl": paverl, "skyrl_sql": skyrl}
    if name in rows:
        write_rows(folder / ("data/train.jsonl" if name == "skyrl_sql" else "data/train.parquet"), rows[name])
        (folder / "package.json").write_text("{}")
    return folder


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(script: str, *arguments: str | Path) -> Done:
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *arguments], capture_output=True, text=True, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


# Per checkout the messages for a question with and without evidence, and the placeholders of the values below.
FORMS: dict[str, tuple[str, str, str]] = {
    "omnisql": (
        "",
        'Engine: SQLite\nTables:\nS\nJSON is {"a": 1}, and a set is {%}.\n\nE\nQ\n\nGo.\n',
        "",
    ),
    "sql_r1_evaluation": (
        "",
        'Engine: SQLite\nTables:\nS\nJSON is {"a": 1}, and a set is {%}.\n\nE\nQ\n\nGo on.\n',
        "",
    ),
    "arctic": ("Be exact.", "Tables:\nS\n\nE\nQ\nUse tags.\n<answer>", "Well. \n<think>"),
    "think2sql": ("Reason:\n<reasoning>\n", "Q \nE\nTables:\nS\n", ""),
    "sql_r1": (
        (
            "Help.\nDatabase Schema:\nS\n\nExternal Knowledge:\nE\n\nSQL Complexity Level: C\n\nBy example {%}.\n"
        ),
        "Q\n",
        "<think>",
    ),
    "paverl": (
        "",
        (
            "Database Engine:\nSQLite\n\nDatabase Schema:\nS\n\nContext:\nE\n\nQuestion:\nQ\n\n"
            "Instructions:\n- Few words.\n"
        ),
        "",
    ),
    "skyrl_sql": (
        "\nSolve {question}.\n",
        "{db_details}:S;\n {external_knowledge}: E;\n {question}: Q",
        "",
    ),
    "skyrl_page": (
        "Solve {question} in <solution>...</solution>.",
        "{db_details}:S;\n {external_knowledge}: E;\n {question}: Q",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_templates_have_the_authors_text(name: str, tmp_path: Path) -> None:
    checkout, out = make_checkout(tmp_path / "checkout", name), tmp_path / "out"
    done = run("authors_prompts", checkout, "--out", out)
    assert (done.code, done.err) == (0, "")
    file = "skyrl_sql" if name == "skyrl_page" else name
    assert [path.stem for path in out.iterdir()] == [file]
    assert ("abbreviated" in done.out) == (name == "skyrl_page")
    template = read_template(str(out / f"{file}.jinja"))
    values = {"schema": "S", "question": "Q", "evidence": "E", "dialect": "SQLite", "complexity": "C", "values": ""}
    every = {**values, "instruction": "", "thinks": False}
    system, user, begun = FORMS[name]
    assert "".join(template.texts(every)) == user
    assert template.system(every) == system
    assert template.assistant(thinks=False) == begun
    # Without evidence there is no line for it, or the authors' text.
    without = "".join(template.texts({**every, "evidence": ""}))
    absent = {"paverl": "None", "think2sql": "", "skyrl_sql": "", "skyrl_page": ""}
    assert without == (
        user.replace("E\nQ", "Q")
        if name not in absent
        else user.replace("\nE\n", f"\n{absent[name]}\n").replace(": E;", ": ;")
    )
    if name == "think2sql":
        assert template.system({**every, "thinks": True}) == "Think:\n<think>\n"


@pytest.mark.parametrize("name", FORMS)
def test_comparison_passes_with_these_templates_and_fails_with_others(name: str, tmp_path: Path) -> None:
    checkout, out = make_checkout(tmp_path / "checkout", name), tmp_path / "out"
    assert run("authors_prompts", checkout, "--out", out).code == 0
    done = run("check_prompts", checkout, "--templates", out)
    assert (done.code, done.err) == (0, ""), done.out
    assert re.search(r": equal in (2 rows|4 fillings)", done.out)
    (path,) = out.iterdir()
    path.write_text(path.read_text().replace("\n\n{% endblock %}", "\n{% endblock %}").replace("Solve", "Answer"))
    done = run("check_prompts", checkout, "--templates", out)
    changed = name != "arctic"  # its messages have no newline at the end
    assert done.code == changed
    assert ("--- theirs" in done.out) == changed


def test_comparison_with_the_shipped_templates_prints_the_differences(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, "arctic")
    done = run("check_prompts", checkout)
    assert (done.code, done.err) == (1, "")
    assert "arctic: " in done.out
    assert "  -system: 'Be exact.'" in done.out
    assert "  +user: 'Task Overview:\\n'" in done.out


def test_invalid_input_is_an_error_of_one_line(tmp_path: Path) -> None:
    for script, more in (("authors_prompts", ["--out", str(tmp_path / "out")]), ("check_prompts", [])):
        done = run(script, tmp_path, *more)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert "no prompt of OmniSQL" in done.err
    checkout = make_checkout(tmp_path / "checkout", "arctic")
    done = run("check_prompts", checkout, "--templates", tmp_path / "none")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    rows = tmp_path / "rows/train.parquet"
    write_rows(rows, sql_r1)
    records = [*parquet.read_table(rows).to_pylist(), paverl("Which?", "")]
    for record in records:
        record["reward_model"] = {"ground_truth": "SELECT 1"}
    parquet.write_table(pa.Table.from_pylist(records), rows)
    done = run("authors_prompts", rows.parent, "--out", tmp_path / "out")
    assert (done.code, done.err) == (2, "a row of sql_r1 has no schema in its system message\n")
