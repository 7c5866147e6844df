"""A recipe is a value: the functions that define a published system from common parts.

A *thought* is the reasoning before the SQL, usually between `<think>` and `</think>`. The *opening tag* is a `<think>`
or `<reasoning>` at the end of a prompt, written by a prefill or a chat template. It belongs to the answer, so target
answers omit it and parsers add it. In a *dialogue*, an answer of several turns, the policy queries the database.
"""

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
from jaxrl_sql.text2sql.prompts.styles import (
    GIVEN,
    Parts,
    PromptStyle,
    ShowSchema,
    chat_style,
    compact_style,
    given_style,
    make_tagged_style,
)
from jaxrl_sql.text2sql.prompts.template import read_template
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, Read, read_plain, with_opening_tag
from jaxrl_sql.text2sql.rewards.score import RewardFunction, RewardRule, ScoredResponse, TextJob, collect, submit_texts
from jaxrl_sql.text2sql.schema.render import RENDERERS, SHOW_EXAMPLES
from jaxrl_sql.types import Example, InputError, Response, Reward

Observe = Callable[[str], str]
"""Runs SQL in a separate turn and returns the environment's observation in the policy's format."""

_THINK = "<think>"
# Placeholders of a prompt template that have the same value for all questions.
_SHARED_PLACEHOLDERS = {"thinks", "instruction"}
_REASONING = re.compile(r"<reasoning>(.*?)</reasoning>", re.DOTALL)


class Recipe(NamedTuple):
    """The prompts, answer format, comparison and reward of a system.

    - `schema` renders the database in a chat prompt, and `template` is the name or path of the prompt template.
    - `instruction` describes the answer format in the `generic` template. `thinking_instruction` replaces it for models
      that think by themselves, unless "". `hint` is the short instruction of the style `tagged`, for small models.
    - `respond(example, observe)` returns the target answer for supervised learning in the recipe's format. It is a
      dialogue if `observe` is not None.
    - `read` parses an answer. `rules` are the names of the comparisons with the gold's result, such as `bird`, and
      `options` their options, such as `strip_distinct`. `reward` computes the reward from both.
    - `stops` are the strings that end a turn. `turns(executor, example, budget)` creates the environment of a dialogue
      with at most `budget` turns; None for a system of one turn.
    - `advantage` and `loss` are functions that replace the configuration's (`algo.updates`); None keeps those.
    - `eval_rule` is the rule that judges answers in validation during training, as in the system's paper; "" selects
      the rule of the benchmark.
    - `reward_function` is a caller's reward. It receives the answer's text, its question and the reward of `reward`,
      and its result replaces that reward.
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
        prefill: str | None = None,
        schema: str = "recipe",
        template: str = "",
        date: str = "",
    ) -> PromptStyle:
        """Return one of the recipe's prompt styles by its `name`, a value of `data.prompt`.

        - `compact`: few tokens, and answers of raw SQL.
        - `tagged`: few tokens, and answers in the recipe's format.
        - `chat`: messages in the tokenizer's chat template.
        - `given`: the messages that the rows of a released data set contain.

        `schema` is the format of the database in the prompt; "recipe" selects the recipe's format in a chat, else
        `compact`. The other arguments are for chats. `thinking` is the chat template's switch: `think`, `no_think`, or
        `template` for its default. `template` replaces the recipe's prompt template. `prefill` is the beginning of the
        answer (None: that of the template or row). `date` is the date that the chat template prints. Raises InputError
        for an unknown name, and for chat options in other styles.
        """
        if name not in ("chat", GIVEN) and (thinking != "template" or prefill or template):
            raise InputError(
                f"data.prompt={name} is not a chat: data.chat.thinking, data.chat.template and "
                "data.chat.assistant_prefill need data.prompt=chat"
            )
        show = self._schema_renderer(name, schema)
        if name == "compact":
            return compact_style(show)
        if name == "tagged":
            return make_tagged_style(self.hint, self.target_response, show)
        thinks = thinking == "think"
        if name == GIVEN:
            style = given_style(self.target_response, show, thinking, prefill, date)
            return self._with_answers(style, thinks=thinks)
        if name != "chat":
            raise InputError(f"prompt style {name!r} is not one of compact, tagged, chat, given")
        prompt_template = read_template(template or self.template)
        instruction = (thinks and self.thinking_instruction) or self.instruction
        prefill = prompt_template.assistant(thinks=thinks) if prefill is None else prefill
        style = chat_style(prompt_template, instruction, self.target_response, show, thinking, prefill, date)
        return self._with_answers(style._replace(opening_tag=open_thought(prefill)), thinks=thinks)

    def style_for(self, data: DataConfig) -> PromptStyle:
        """Return the prompt style of a configuration, with its settings for retrieved values.

        Retrieved values are values of the database that a question seems to name. The prompt shows them among a
        column's examples if the schema format has examples, else before the question. Raises InputError if the template
        has no placeholder for them.
        """
        chat, prefill = data.chat, data.chat.assistant_prefill or None
        style = self.style(data.prompt, chat.thinking, prefill, data.schema, chat.template, chat.date)
        return self._with_data_settings(style, data)

    def endpoint_style(self, data: DataConfig) -> PromptStyle:
        """Return the style of chats with an endpoint, without a prefill."""
        name = GIVEN if data.prompt == GIVEN else "chat"
        return self._with_data_settings(self.style(name, data.chat.thinking, "", data.schema, data.chat.template), data)

    def _with_data_settings(self, style: PromptStyle, data: DataConfig) -> PromptStyle:
        """Return a style with the settings on retrieved values and the schema's size; raises InputError."""
        in_question = data.retrieval.placement == "question" or style.show not in SHOW_EXAMPLES
        template = data.chat.template or self.template
        shows_values_in_question = data.retrieval.top_k and in_question and style.name == "chat"
        if shows_values_in_question and "values" not in read_template(template).placeholders:
            raise InputError(
                f"data.retrieval.top_k={data.retrieval.top_k} shows values before the question, and "
                f"data.chat.template={template} has no {{{{ values }}}}"
            )
        if style.name == "chat" and data.shots and read_template(template).in_system - _SHARED_PLACEHOLDERS:
            raise InputError(
                f"data.shots={data.shots} shows questions as turns, but the system message of {template} belongs to "
                "one question"
            )
        return style._replace(
            retrieve=data.retrieval.top_k,
            in_question=in_question,
            schema_budget=data.schema_budget,
            synonyms=data.retrieval.synonyms,
        )

    def adapt_style(self, style: PromptStyle, tokenizer: Any) -> PromptStyle:
        """Return the style for a tokenizer whose chat template may open a thought (`<think>`) at the end of a prompt.

        Target answers then omit the tag, and the parser adds it.
        """
        # The template is only known from its output: render a prompt and read the text after the question.
        question = "Question?"
        text = "".join(style.wrap(tokenizer, Parts("Schema. ", question), ()))
        opening_tag = open_thought(text.rpartition(question)[2])
        if opening_tag == style.opening_tag or style.answers_raw_sql:
            return style
        return self._with_answers(style._replace(opening_tag=opening_tag))

    def _with_answers(self, style: PromptStyle, *, thinks: bool = False) -> PromptStyle:
        """Return a chat style with target answers that omit the tag at the end of their prompts."""

        def answer(example: Example) -> Response:
            return self.target_response(example, opening_tag=style.tag_of(example), thinks=thinks)

        return style._replace(answer=answer)

    def _schema_renderer(self, style: str, schema: str) -> ShowSchema:
        if schema == "recipe":
            # A recipe without a schema in its prompts hides it in every style.
            hides_schema = self.schema is RENDERERS["names_only"]
            return self.schema if style in ("chat", GIVEN) or hides_schema else RENDERERS["compact"]
        if schema not in RENDERERS:
            raise InputError(f"schema {schema!r} is not one of recipe, {', '.join(RENDERERS)}")
        return RENDERERS[schema]

    def target_response(
        self, example: Example, observe: Observe | None = None, opening_tag: str = "", thinks: bool = False
    ) -> Response:
        """Return the target response, without the tag `opening_tag` that its prompt already ends with ("": no tag).

        `observe` makes it a dialogue. If the opening tag is `<think>`, or a model `thinks` by itself, a thought in
        `<reasoning>` tags gets `<think>` tags. A response without a thought begins with the closing tag.
        """
        response = self.respond(example, observe)
        if isinstance(response, str) and (thinks or opening_tag == _THINK):
            response = _in_think(response)
        if isinstance(response, str):
            return _remove_opening_tag(opening_tag, response)
        (role, text), *rest = response
        return [(role, _remove_opening_tag(opening_tag, text)), *rest]

    def observer(self, executor: Any, example: Example, turns: int) -> Observe | None:
        """Return an `Observe` for a dialogue of `turns` turns on an example's database; None for a single turn.

        It runs SQL in the environment of rollouts, which counts turns, so each dialogue needs a new one.
        """
        if self.turns is None or turns < 2:
            return None
        environment = self.turns(executor, example, turns)

        def observe(sql: str) -> str:
            observation = environment.next(Action(f"<sql>{sql}</sql>", "stop"))
            if observation is None:
                raise InputError(f"{example.uid}: the response has more than {turns} turns")
            return observation.result()

        return observe

    def in_dialogues(self, style: PromptStyle, executor: Any, turns: int) -> PromptStyle:
        """Return a style whose target answers are dialogues of up to `turns` turns.

        The style is unchanged if the recipe has a single turn, or answers are raw SQL.
        """
        if self.turns is None or style.answers_raw_sql:
            return style

        def answer(example: Example) -> Response:
            return self.target_response(example, self.observer(executor, example, turns), style.tag_of(example))

        return style._replace(answer=answer)

    def parse(self, response: Response, style: PromptStyle, opening_tag: str = "") -> ParsedResponse:
        """Parse a response to a prompt of a style: as raw SQL if its answers are raw SQL, else in the recipe's format.

        `opening_tag` is the tag at the end of this prompt (`opening_tag_of`); "" selects the tag that the style has.
        """
        if style.answers_raw_sql:
            return read_plain(response)
        return self.read(with_opening_tag(response, opening_tag or style.opening_tag))

    def submit(
        self,
        executor: SqlExecutor,
        examples: Sequence[Example],
        responses: Sequence[Response],
        style: PromptStyle,
        opening_tag: str = "",
    ) -> TextJob:
        """Submit finished responses to prompts of `style` for scoring; returns immediately.

        `opening_tag` is as in `parse`.
        """
        if style.name == GIVEN:  # each row has its own prompt, which may end with a tag
            responses = [
                with_opening_tag(response, style.tag_of(example))
                for example, response in zip(examples, responses, strict=True)
            ]
            style = style._replace(opening_tag="")
        read = partial(self.parse, style=style, opening_tag=opening_tag)
        return submit_texts(executor, examples, responses, read, self.rules, self.options)

    def collect(self, job: TextJob) -> list[ScoredResponse]:
        """Wait for a submitted job; return rewards, SQL and statuses in the order of its responses."""
        return collect(job, self.reward, self.reward_function)

    def score(
        self, executor: SqlExecutor, examples: Sequence[Example], responses: Sequence[Response], opening_tag: str = ""
    ) -> list[Reward]:
        """Score responses in the recipe's format and wait; `opening_tag` is the tag at the end of their prompts."""

        def read(response: Response) -> ParsedResponse:
            return self.read(with_opening_tag(response, opening_tag))

        job = submit_texts(executor, examples, responses, read, self.rules, self.options)
        return [scored.reward for scored in self.collect(job)]


def _in_think(text: str) -> str:
    """Replace the `<reasoning>` tags of the thought at the start by `<think>` tags."""
    match = _REASONING.match(text)
    return f"{_THINK}{match[1]}</think>{text[match.end() :]}" if match else text


def _remove_opening_tag(opening_tag: str, text: str) -> str:
    """Return a target without the opening tag of its prompt; a target without a thought closes the tag at once."""
    if text.startswith(opening_tag):
        return text.removeprefix(opening_tag)
    return f"\n{opening_tag.replace('<', '</')}\n{text}"
