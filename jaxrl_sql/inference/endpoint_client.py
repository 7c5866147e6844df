"""A client of a model behind an endpoint, a server with OpenAI's chat interface.

A question is a chat, with further turns if the recipe has them. A recipe is the prompt, the parsing and the reward of a
published system. `endpoint_answers` is used like `policy_client.open_model_answers`. A turn is truncated here after the
recipe's first stop string, because servers of reasoning models accept no stop strings. Finished dialogues are saved in
`endpoint.jsonl`, so the repeated command resumes from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxrl_sql.config import DataConfig, EvaluateSettings
from jaxrl_sql.runtime.budget import Usage
from jaxrl_sql.runtime.endpoint import Endpoint, EndpointAnswer, make_budget, open_endpoint
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.env.tags import with_opened_thought
from jaxrl_sql.text2sql.env.turns import Action, Environment
from jaxrl_sql.text2sql.evals.records import QuestionAnswers
from jaxrl_sql.text2sql.prompts.prompts import message_texts
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.recipes import Recipe
from jaxrl_sql.types import OUT_OF_TURNS, Example, Fields, InputError, JaxrlSqlError

# The error of a server that accepts fewer tokens per answer than the request allows.
_TOO_MANY_TOKENS = re.compile(
    r"max_(?:completion_)?tokens\b.*\b(?:at most|too large|too high|exceed|maximum|less than)"
)

DIALOGUES = "endpoint.jsonl"

AskEndpoint = Callable[[str, Sequence[Example], int, int, Callable[[int, int], None]], list[QuestionAnswers]]
"""Answers questions, as `policy_client.AnswerFn`.

Arguments: name of the benchmark set, questions, number of the run (of `evaluate.runs`), number of the rollout (not used
here), and progress callback.
"""

# Of a dialogue: benchmark set, run, question's id, number of the sample.
_Key = tuple[str, int, str, int]


@dataclass
class _Dialogue:
    """An unfinished answer.

    `messages` are those of the next request. `environment` runs the queries of a multi-turn recipe (None: one turn).
    `turns` are the (role, text) pairs so far, and `spent` the requests and tokens so far. `finish_reason` is the
    server's for the last turn: `stop` after a stop string, OUT_OF_TURNS after the last turn.
    """

    key: _Key
    messages: list[dict[str, str]]
    environment: Environment | None
    turns: list[tuple[str, str]] = field(default_factory=list)
    spent: Usage = field(default_factory=Usage)
    error: str = ""
    finish_reason: str = ""

    def add_turn(self, answer: EndpointAnswer, stops: Sequence[str]) -> bool:
        """Add the model's turn and the environment's observation; return whether the dialogue continues."""
        self.spent = self.spent.plus(answer.spent)
        if answer.error:
            self.error = answer.error
            return False
        text, reason = _truncate_at_stop(answer.text, stops)
        self.turns.append(("assistant", with_opened_thought(text)))
        self.finish_reason = reason or answer.finish_reason
        action = Action(text, "length" if self.finish_reason == "length" else "stop")
        observation = self.environment.next(action) if self.environment else None
        if observation is None:
            if self.environment and self.environment.is_out_of_turns:
                self.finish_reason = OUT_OF_TURNS
            return False
        observation_text = observation.result()
        self.turns.append(("environment", observation_text))
        self.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": observation_text.strip()}]
        return True

    def record(self) -> dict[str, Any]:
        """Return the journal's record of the dialogue."""
        answer = {"turns": [list(turn) for turn in self.turns], "finish_reason": self.finish_reason}
        result = {"error": self.error} if self.error else answer
        return {"key": list(self.key), **result, **self.spent._asdict()}


def _add_setting_hint(answer: EndpointAnswer) -> EndpointAnswer:
    """Add the setting to change to the error of a server that accepts fewer tokens."""
    if not (answer.refused and _TOO_MANY_TOKENS.search(answer.error)):
        return answer
    return answer._replace(error=f"{answer.error}: lower evaluate.sampling.max_new_tokens")


def _truncate_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """Return a text up to its first stop string (included), and `stop` if there is one."""
    ends = [start + len(stop) for stop in stops if (start := text.find(stop)) >= 0]
    return (text[: min(ends)], "stop") if ends else (text, "")


@dataclass
class _Client:
    """An endpoint, the prompt style, and the finished dialogues."""

    endpoint: Endpoint
    recipe: Recipe
    style: PromptStyle
    executor: Executor
    journal: Journal
    config: EvaluateSettings
    finished: dict[_Key, Mapping[str, Any]]

    def ask(
        self, name: str, examples: Sequence[Example], run: int, on_progress: Callable[[int, int], None]
    ) -> list[QuestionAnswers]:
        """Run the dialogues of a benchmark set's questions concurrently, one turn of each at a time.

        `name` is that of the set, `run` the number of the run. Raises JaxrlSqlError if the server did not answer some
        of them; the repeated command asks only those.
        """
        cfg = self.config
        keys = {(example.uid, n): (name, run, example.uid, n) for example in examples for n in range(cfg.samples)}
        prompts = {example.uid: message_texts(example, self.style).messages() for example in examples}
        pending = [
            _Dialogue(keys[example.uid, n], [*prompts[example.uid]], self._environment(example))
            for example in examples
            for n in range(cfg.samples)
            if keys[example.uid, n] not in self.finished
        ]
        dialogues, failure = pending, ""
        stops = (*self.recipe.stops, *cfg.sampling.stop)
        try:
            while pending:
                continued = []
                for dialogue, answer in self.endpoint.ask_all(
                    ((dialogue_, dialogue_.messages) for dialogue_ in pending), **self._sampling_options()
                ):
                    if dialogue.add_turn(_add_setting_hint(answer), stops):
                        continued.append(dialogue)
                    elif answer.error and not answer.refused:
                        failure = answer.error
                    else:
                        self.finished[dialogue.key] = dialogue.record()
                        self.journal.add(self.finished[dialogue.key])
                        on_progress(sum(key in self.finished for key in keys.values()), len(keys))
                pending = continued
        finally:
            for dialogue_ in dialogues:  # requests of unfinished dialogues count, too
                if dialogue_.spent.requests and dialogue_.key not in self.finished:
                    self.journal.add({"unfinished": list(dialogue_.key), **dialogue_.spent._asdict()})
        if failure:
            raise JaxrlSqlError(f"{self.endpoint.base_url}: {failure}; repeat the command to resume")
        records = {uid: [self.finished[keys[uid, n]] for n in range(cfg.samples)] for uid in prompts}
        return [self._read_answers(prompts[example.uid], records[example.uid]) for example in examples]

    def _environment(self, example: Example) -> Environment | None:
        make_environment, turns = self.recipe.turns, self.config.sampling.turns
        return make_environment(self.executor, example, turns) if make_environment and turns > 1 else None

    def _sampling_options(self) -> dict[str, Any]:
        """Return the sampling options of a request; neutral values are omitted, as servers differ."""
        cfg, neutral = self.config, {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        options = {name: value for name in neutral if (value := getattr(cfg.sampling, name)) != neutral[name]}
        options |= {"temperature": cfg.sampling.temperature} if cfg.send_temperature else {}
        return {cfg.token_limit: cfg.sampling.max_new_tokens, **options}

    def _read_answers(
        self, prompt_messages: Sequence[Mapping[str, str]], records: Sequence[Mapping[str, Any]]
    ) -> QuestionAnswers:
        prompt = "\n\n".join(message["content"] for message in prompt_messages)
        if error := next((record["error"] for record in records if "error" in record), ""):
            return QuestionAnswers((), prompt=prompt, error=error)
        responses = tuple(tuple((role, text) for role, text in record["turns"]) for record in records)
        sqls = tuple(self.recipe.parse(response, self.style).sql for response in responses)
        tokens = sum(Usage.of(record).completion_tokens for record in records)
        reasons = tuple(record["finish_reason"] for record in records)
        return QuestionAnswers(sqls, responses, prompt, tokens=tokens, finish_reasons=reasons)


@contextmanager
def endpoint_answers(
    cfg: EvaluateSettings,
    recipe: Recipe,
    data: DataConfig,
    executor: Executor,
    settings: Fields,
    report: Callable[[str], None],
) -> Iterator[AskEndpoint]:
    """Open the endpoint of the section `evaluate` and yield a function that asks it; `evaluate.out` has the dialogues.

    `settings` are the values that the answers depend on. `report` gets a line about the spent budget at the end. Raises
    InputError for a missing address, model or key, for several turns of a single-turn recipe, and for dialogues in the
    folder that have other `settings`.
    """
    turns = cfg.sampling.turns
    if turns > 1 and recipe.turns is None:
        raise InputError(f"recipe {recipe.name} answers in one turn: evaluate.sampling.turns must be 1, not {turns}")
    if data.shots:
        raise InputError(f"data.shots={data.shots}: few-shot examples are not supported with an endpoint: it must be 0")
    with Journal(Path(cfg.out) / DIALOGUES, settings) as journal:
        budget = make_budget(cfg, Usage.total(journal.records))
        with open_endpoint(cfg, budget) as endpoint:
            finished: dict[_Key, Mapping[str, Any]] = {
                _key(record["key"]): record for record in journal.records if "key" in record
            }
            style = recipe.endpoint_style(data)
            client = _Client(endpoint, recipe, style, executor, journal, cfg, finished)
            try:
                yield lambda name, examples, run, _number, on_progress: client.ask(name, examples, run, on_progress)
            finally:
                report(budget.text())


def _key(values: Sequence[Any]) -> _Key:
    name, run, uid, sample = values
    return str(name), int(run), str(uid), int(sample)
