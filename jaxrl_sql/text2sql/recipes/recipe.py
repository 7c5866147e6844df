"""A recipe is a value: the functions that make one published system out of the common parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxrl_sql.config import DataConfig
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.env.tags import open_thought
from jaxrl_sql.text2sql.env.turns import Action, Environment
from jaxrl_sql.text2sql.prompts.prompts import PromptStyle, ShowSchema, chat_style, compact_style, tagged_style
from jaxrl_sql.text2sql.prompts.template import read_template
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, Read, read_plain, with_beginning
from jaxrl_sql.text2sql.rewards.score import RewardFunction, RewardRule, ScoredResponse, TextJob, collect, submit_texts
from jaxrl_sql.text2sql.schema.render import RENDERERS, SHOW_EXAMPLES
from jaxrl_sql.types import Example, InputError, Response, Reward

Observe = Callable[[str], str]
"""Runs SQL in a turn of its own and returns what the environment answers, as the policy will read it."""

_THINK = "<think>"
_REASONING = re.compile(r"<reasoning>(.*?)</reasoning>", re.DOTALL)


class Recipe(NamedTuple):
    """How a system asks, reads the answer, compares results and pays.

    `schema` is how a chat prompt shows the database, `template` the name or path of its template, and `instruction`
    what the `generic` one says of the answer's form (`thinking_instruction`: to a model that thinks of itself; "" for
    the same); `hint` is the same in few words, for small models. `respond` writes the answer that supervised learning
    imitates, in the recipe's form: a dialogue where it is given a way to observe. `read` finds what an answer holds;
    `rules` compare results, with `options`; `reward` pays. `stops` are the strings that end a turn; `turns(executor,
    example, budget)` makes the environment's side of a dialogue of so many turns, for systems that have several.
    `advantage` and `loss` replace those of the configuration. `eval_rule` judges its answers when they are evaluated in
    training, by the system's paper; "" for the rule of the set that is evaluated on. `reward_function` of a caller
    reads the answer's text and question too, and replaces the total of `reward`.
    """

    name: str
    schema: ShowSchema
    instruction: str
    hint: str
    respond: Callable[[Example, Observe | None], Response]
    read: Read
    rules: tuple[str, ...]
    reward: RewardRule
    options: Mapping[str, Any] = MappingProxyType({})
    stops: tuple[str, ...] = ()
    turns: Callable[[Any, Example, int], Environment] | None = None
    advantage: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None
    thinking_instruction: str = ""
    template: str = "generic"
    eval_rule: str = ""
    reward_function: RewardFunction | None = None

    def style(
        self,
        name: str = "chat",
        thinking: str = "template",
        begin: str | None = None,
        schema: str = "recipe",
        template: str = "",
        date: str = "",
    ) -> PromptStyle:
        """Return the recipe's prompt style `compact` (raw SQL for an answer), `tagged` or `chat`.

        `schema` names how the database is shown; `recipe` is compact, and the recipe's own way in a chat. In a chat
        `thinking` sets a chat template's switch, `template` names another prompt template than the recipe's, and
        `begin` writes the first words of an answer (None: the template's); a tag at their end is the answer's own.
        `date` is the day that a chat template knows.
        Raises InputError for a name that is none, and for what needs a chat elsewhere.
        """
        if name != "chat" and (thinking != "template" or begin or template):
            raise InputError(
                f"data.prompt={name} is no chat: data.chat.thinking, data.chat.template and "
                "data.chat.assistant_prefill need data.prompt=chat"
            )
        show = self._show(name, schema)
        if name == "compact":
            return compact_style(show)
        if name == "tagged":
            return tagged_style(self.hint, self.taught, show)
        if name != "chat":
            raise InputError(f"prompt style {name!r} is none of compact, tagged, chat")
        thinks, asked = thinking == "think", read_template(template or self.template)
        instruction = (thinks and self.thinking_instruction) or self.instruction
        begin = asked.assistant(thinks=thinks) if begin is None else begin
        begun = open_thought(begin)
        answer = partial(self.taught, begun=begun, thinks=thinks)
        return chat_style(asked, instruction, answer, show, thinking, begin, date)._replace(begun=begun)

    def style_for(self, data: DataConfig) -> PromptStyle:
        """Return the prompt style that a configuration asks for, with the values that it has retrieved.

        They stand among a column's examples where the way of showing the database has some, else before the question.
        Raises InputError where they would stand in a template that has no place for them.
        """
        chat, begin = data.chat, data.chat.assistant_prefill or None
        style = self.style(data.prompt, chat.thinking, begin, data.schema, chat.template, chat.date)
        return self._with_values(style, data)

    def endpoint_style(self, data: DataConfig) -> PromptStyle:
        """Return the style of chats with an endpoint, whose answers nobody begins."""
        return self._with_values(self.style("chat", data.chat.thinking, "", data.schema, data.chat.template), data)

    def _with_values(self, style: PromptStyle, data: DataConfig) -> PromptStyle:
        in_question = data.retrieval.placement == "question" or style.show not in SHOW_EXAMPLES
        template = data.chat.template or self.template
        asks_in_question = data.retrieval.top_k and in_question and style.name == "chat"
        if asks_in_question and "values" not in read_template(template).placeholders:
            raise InputError(
                f"data.retrieval.top_k={data.retrieval.top_k} shows values before the question, and "
                f"data.chat.template={template} has no {{{{ values }}}}"
            )
        return style._replace(
            retrieve=data.retrieval.top_k,
            in_question=in_question,
            schema_budget=data.schema_budget,
            synonyms=data.retrieval.synonyms,
        )

    def opened(self, style: PromptStyle, tokenizer: Any) -> PromptStyle:
        """Return the style for a tokenizer whose chat template may itself open a thought (`<think>`) at a prompt's end.

        What is taught then leaves the tag out, and what is read has it.
        """
        question = "Question?"
        begun = open_thought(style.wrap(tokenizer, "Schema. ", question)[1].rpartition(question)[2])
        if begun == style.begun or style.answers_raw_sql:
            return style
        return style._replace(begun=begun, answer=partial(self.taught, begun=begun))

    def _show(self, style: str, schema: str) -> ShowSchema:
        if schema == "recipe":
            hides = self.schema is RENDERERS["names_only"]  # in every style
            return self.schema if style == "chat" or hides else RENDERERS["compact"]
        if schema not in RENDERERS:
            raise InputError(f"schema {schema!r} is none of recipe, {', '.join(RENDERERS)}")
        return RENDERERS[schema]

    def taught(
        self, example: Example, observe: Observe | None = None, begun: str = "", thinks: bool = False
    ) -> Response:
        """Return the response to imitate, without the opening tag `begun` that its prompt ends with.

        Where that is `<think>`, or a model `thinks` of itself, a thought in `<reasoning>` becomes one in `<think>`. A
        response that does not begin with the tag ends at once what it opened.
        """
        response = self.respond(example, observe)
        if isinstance(response, str) and (thinks or begun == _THINK):
            response = _in_think(response)
        if isinstance(response, str):
            return _after(begun, response)
        (role, text), *rest = response
        return [(role, _after(begun, text)), *rest]

    def observer(self, executor: Any, example: Example, turns: int) -> Observe | None:
        """Return how to observe in a dialogue of so many turns on an example's database; None for a single turn.

        It answers as the rollout's environment would, turn by turn, so each dialogue needs one of its own.
        """
        if self.turns is None or turns < 2:
            return None
        policy = self.turns(executor, example, turns)

        def observe(sql: str) -> str:
            observation = policy.next(Action(f"<sql>{sql}</sql>", "stop"))
            if observation is None:
                raise InputError(f"{example.uid}: a response of more than {turns} turns")
            return observation.result()

        return observe

    def in_dialogues(self, style: PromptStyle, executor: Any, turns: int) -> PromptStyle:
        """Return a style whose answers to imitate are dialogues of up to so many turns, where the recipe has them."""
        if self.turns is None or style.answers_raw_sql:
            return style

        def answer(example: Example) -> Response:
            return self.taught(example, self.observer(executor, example, turns), style.begun)

        return style._replace(answer=answer)

    def reading(self, response: Response, style: PromptStyle, begun: str = "") -> ParsedResponse:
        """Read a response to a prompt of a style: whole where answers are raw SQL, else in the recipe's own way.

        `begun` is the tag that the prompt's text ends with (`rewards.extract.begun_by`), if the style does not know it.
        """
        if style.answers_raw_sql:
            return read_plain(response)
        return self.read(with_beginning(response, begun or style.begun))

    def submit(
        self,
        executor: SqlExecutor,
        examples: Sequence[Example],
        responses: Sequence[Response],
        style: PromptStyle,
        begun: str = "",
    ) -> TextJob:
        """Begin to score finished responses to prompts of `style`; returns at once."""
        read = partial(self.reading, style=style, begun=begun)
        return submit_texts(executor, examples, responses, read, self.rules, self.options)

    def collect(self, job: TextJob) -> list[ScoredResponse]:
        """Wait for a submitted job; rewards, SQL and statuses in order."""
        return collect(job, self.reward, self.reward_function)

    def score(
        self, executor: SqlExecutor, examples: Sequence[Example], responses: Sequence[Response], begun: str = ""
    ) -> list[Reward]:
        """Score responses in the recipe's form and wait; `begun` is the tag that their prompts ended with."""

        def read(response: Response) -> ParsedResponse:
            return self.read(with_beginning(response, begun))

        job = submit_texts(executor, examples, responses, read, self.rules, self.options)
        return [scored.reward for scored in self.collect(job)]


def _in_think(text: str) -> str:
    found = _REASONING.match(text)
    return f"{_THINK}{found[1]}</think>{text[found.end() :]}" if found else text


def _after(begun: str, text: str) -> str:
    if text.startswith(begun):
        return text.removeprefix(begun)
    return f"\n{begun.replace('<', '</')}\n{text}"
