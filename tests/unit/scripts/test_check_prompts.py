"""Comparison of templates with authors' prompts: sentences may differ, structure may not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/check_prompts.py"
SPEC = importlib.util.spec_from_file_location("check_prompts", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
check_prompts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_prompts)

# The layouts of released code, with our text: one string with placeholders, separate messages, and a text file.
ONE_STRING = '''
OTHER = "not a prompt"
PROMPT = """Task Overview:
Do it.

Database Engine:
SQLite

Database Schema:
{db_details}

Question:
{question}

Instructions:
- Do it well.

Output Format:
<think> and <answer>
```sql
-- here
```
Example format:
</think>
</answer>"""
BEGUN = "Let me solve this step by step."
'''
MESSAGES = '''
SYSTEM = """Think.
<reasoning>
</reasoning>
<answer>
</answer>"""
def user(question, evidence, schema):
    return f"""Database Engine:
SQLite
Question:
{question}
Evidence:
{evidence}
Database Schema:
{schema}"""
'''


@pytest.mark.parametrize(
    ("name", "file", "text", "code", "expected"),
    [
        ("arctic", "prompts.py", ONE_STRING, 0, "one structure"),
        ("think2sql", "src/prompt/base.py", MESSAGES, 0, "one structure"),
        ("think2sql", "system.py", MESSAGES.replace("<reasoning>", "<think>"), 1, "only theirs: <think>"),
        ("arctic", "prompts.py", ONE_STRING.replace("Instructions:", "Advice:"), 1, "only ours: instructions:"),
        ("arctic", "prompts.py", 'X = "Question: {question}"', 1, "no prompt found"),
        (
            "think2sql",
            "p.txt",
            (
                "<reasoning></reasoning><answer></answer>\nDatabase Engine:\nSQLite\nDatabase Schema:\n{schema}\n"
                "Question:\n{question}\nEvidence:\n{evidence}\n"
            ),
            1,
            "order: ours",
        ),
    ],
)
def test_only_a_different_structure_fails(
    name: str, file: str, text: str, code: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    assert check_prompts.main(["--reference", str(tmp_path), name]) == code
    shown = capsys.readouterr().out
    assert expected in shown
    # Every different sentence is printed, also if the structure is equal.
    assert code or "+++ ours" in shown
    if name == "arctic" and not code:
        assert "-Do it." in shown


def test_invalid_input_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_prompts.main(["--reference", str(tmp_path / "none"), "arctic"]) == 2
    assert check_prompts.main(["--reference", str(tmp_path), "artic"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
