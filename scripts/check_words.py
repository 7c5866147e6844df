"""Reject project-specific names and phrases that have a common term.

The script searches all files that git tracks. `NAMES` are identifiers, matched as whole words in code; `PHRASES` are
patterns, matched in docstrings, comments, messages and pages. Each finding has the replacement.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

NAMES = {
    "Answered": "QuestionAnswers",
    "Answerer": "PolicyClient",
    "Arrivals": "CompletionLog",
    "Culprits": "CrashedQueries",
    "Draft": "QuestionCandidate",
    "Flight": "InFlightQuery",
    "Gathered": "RolloutBatch",
    "GivenUp": "AbandonedSessions",
    "HurriedError": "PreemptedError",
    "InDialects": "DialectAssigner",
    "Intake": "SchedulerState",
    "Judged": "BenchmarkMetrics",
    "Judging": "AnswerJudge",
    "Lane": "PromptSequence",
    "Launch": "JobBuilder",
    "Lessons": "SftDataset",
    "Portions": "batches",
    "PromptBook": "PrefixCache",
    "Remedy": "Suggestion",
    "RowBook": "BlockTable",
    "Said": "Observation",
    "Scene": "QuestionBuilder",
    "Scored": "ScoredResponse",
    "SheetDatabases": "DatabaseResolver",
    "Sides": "EnvStates",
    "Talk": "WorkerChannel",
    "Ticket": "RequestGroup",
    "TurnPolicy": "Environment",
    "Written": "Action",
    "bury": "reap",
    "draw_block": "collect_rollouts",
    "drawn_logprobs": "behavior_logprobs",
    "few_programs": "pad_to_max",
    "flight": "rollout_buffer",
    "go_on": "append_observation",
    "habit": "extra_columns",
    "hows": "sampling",
    "hurries": "should_abort",
    "illness": "stop_reason",
    "ledger": "kv_blocks",
    "lessons": "sft_dataset",
    "let_go": "release_slots",
    "make_lessons": "make_sft_dataset",
    "make_store": "make_old_logprob_fn",
    "max_importance_weight": "tis_clip_max",
    "open_boards": "open_trackers",
    "remedies": "suggestions",
    "rename_words": "shuffle_identifiers",
    "sampler_logprobs": "rollout_logprobs",
    "taken_up": "batches_from_arrays",
    "talkative": "extra_columns",
    "tidy": "prune",
    "way_back": "block_owner",
}
"""Former identifiers and their replacements."""

PHRASES = {
    r"\b(is|are|was|be|gets?) paid\b|\bpaid (answer|group|ones)": "rewarded",
    r"\btalkative\b": "that shows more columns than were asked for",
    r"\bhow(s)? many there be\b|\bwhere nobody knows\b": "of unknown …",
    r"\bsomebody waits for the end\b": "the process is being stopped",
    r"\bwhat (was|is) told of\b": "what is reported for",
    r"\bdrawn? answers\b|\b(answers|tokens|completions|candidates) (that )?(are|were|being) drawn\b": "sampled",
    r"\bquestions (that )?(are|were) drawn\b|\bas they are drawn\b": "asked",
    r"\bteacher of extra columns\b": "demonstrations with an extra column",
}
"""Project-specific phrases and their replacements."""

READ = {".py", ".pyi", ".rs", ".md", ".yaml", ".toml", ".sh"}
# These files contain the phrases intentionally.
EXEMPT = {"scripts/check_words.py", "tests/unit/scripts/test_check_words.py"}


def list_tracked(root: Path) -> list[str]:
    """Return the paths that git tracks below `root`, except those that contain the phrases intentionally."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True)  # noqa: S607
    return [name for name in listed.stdout.split("\0") if name not in EXEMPT and Path(name).suffix in READ]


def find_words(name: str, text: str) -> Iterator[str]:
    """Yield a line for each old word in the text of the file called `name`."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, use in PHRASES.items():
            if match := re.search(pattern, line, re.IGNORECASE):
                yield f"{name}:{number}: “{match[0]}”: write “{use}”"
    for number, word in identifiers(Path(name).suffix, text):
        if word in NAMES:
            yield f"{name}:{number}: {word}: it is called {NAMES[word]}"


def identifiers(suffix: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, word) of the identifiers in a source file, and of text in backticks in pages and comments."""
    if suffix in (".py", ".pyi"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
    for number, line in enumerate(text.splitlines(), 1):
        snippets = [line.partition("//")[0]] if suffix == ".rs" else re.findall(r"`([^`]+)`", line)
        for snippet in snippets:
            yield from ((number, word) for word in re.findall(r"\w+", snippet))


def main() -> int:
    """Search the tracked files; return 1 if a former name or phrase occurs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to search")
    root = parser.parse_args().root
    result = [
        line for name in list_tracked(root) for line in find_words(name, (root / name).read_text(encoding="utf-8"))
    ]
    print("\n".join(result))
    return bool(result)


if __name__ == "__main__":
    sys.exit(main())
