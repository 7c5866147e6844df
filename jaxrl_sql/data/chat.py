"""Conversations as tokens: the tokenizer's own chat template, and what it does not tell.

The text and its tokens are those of transformers' `apply_chat_template`. Added here: a begun assistant's turn, the
thinking switch where a template has one, and who wrote each token. Few templates mark what the assistant wrote
(`{% generation %}`), and cutting a conversation's rendering where that of its beginning ends is wrong where a template
drops what was thought before the last question (Qwen3's does). So each message is found where it stands: the whole is
rendered once more with a marker in the message's place, and what surrounds the marker surrounds the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_sql.types import InputError

Message = Mapping[str, str]

THINKING: Mapping[str, bool | None] = {"template": None, "think": True, "no_think": False}
"""The names of the thinking switch, and what a template is told: nothing, yes or no."""

# Letters that no template, trimming or escaping changes, and that no message holds.
_MARK = "zqMARKqz"


class Chat(NamedTuple):
    """A conversation's text, its N tokens, and who wrote each: a message's role, or nobody ("") for the template's own.

    What the assistant wrote begins after the opening of its turn and holds the token that ends the turn.
    """

    text: str
    token_ids: tuple[int, ...]
    authors: tuple[str, ...]

    def mask(self, role: str = "assistant") -> tuple[bool, ...]:
        """Tell of each token whether this role wrote it."""
        return tuple(author == role for author in self.authors)


class _Span(NamedTuple):
    """Characters [start, end) of the text that one author wrote."""

    start: int
    end: int
    author: str


def render_chat(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None = None, begin: str | None = None
) -> str:
    """Return the text of a conversation by the tokenizer's chat template.

    `begin` opens the assistant's turn and writes its first words ("" for none); without it the messages stand alone.
    `thinking` switches a template's thinking on or off; None leaves it as the template has it.
    Raises InputError for a tokenizer without a template, one without a switch that is asked for, and for messages
    that a template refuses.
    """
    if not messages:
        raise InputError("a conversation needs at least one message")
    switch = {} if thinking is None else {"enable_thinking": thinking}
    conversation = [dict(message) for message in messages]
    try:
        template = str(tokenizer.get_chat_template()) if switch else ""
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=begin is not None, **switch
        )
    except ImportError as error:
        raise InputError("chat templates need the package jinja2, which renders them") from error
    except (AttributeError, ValueError) as error:
        raise InputError(
            "a chat needs a tokenizer with a chat template (chat_template.jinja beside it, or chat_template in its "
            "tokenizer_config.json); data.prompt=compact needs none"
        ) from error
    except Exception as error:  # a template is a program of its author's, and raises what it likes
        raise InputError(f"the tokenizer's chat template refuses these messages: {_first_line(error)}") from error
    if switch and "enable_thinking" not in template:
        raise InputError("the tokenizer's chat template has no switch for thinking (enable_thinking)")
    return text + (begin or "")


def encode_chat(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None = None, begin: str | None = None
) -> Chat:
    """Return the tokens of a conversation and who wrote them; the arguments are those of `render_chat`.

    Words that `begin` puts into the assistant's mouth are nobody's. A token that reaches over the edge of a message
    belongs to nobody either. Raises InputError as `render_chat` does, and where the template does not show a message.
    """
    text = render_chat(tokenizer, messages, thinking, begin)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    authors = [""] * len(encoded["input_ids"])
    spans = _spans(tokenizer, messages, thinking, begin, text)
    span = next(spans, None)
    before = 0
    for i, (place, end) in enumerate(encoded["offset_mapping"]):
        # Some tokenizers leave white space out of a token's place: tokens lie side by side all the same.
        start, before = min(place, before), end
        while span and end > span.end:
            span = next(spans, None)
        if span and span.start <= start < end:
            authors[i] = span.author
    return Chat(text, tuple(encoded["input_ids"]), tuple(authors))


def _spans(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None, begin: str | None, text: str
) -> Iterator[_Span]:
    """Yield where each message stands in the rendered text, in order."""
    opening = _opening(tokenizer, messages, thinking) if any(m["role"] == "assistant" for m in messages) else ""
    after = 0
    for i, message in enumerate(messages):
        if message.get("tool_calls"):
            raise InputError(f"message {i}: tool_calls are not supported; write the call into the content")
        marked = [*messages[:i], {"role": message["role"], "content": _MARK}, *messages[i + 1 :]]
        before, mark, rest = render_chat(tokenizer, marked, thinking, begin).partition(_MARK)
        end = len(text) - len(rest)
        if not mark or not text.endswith(rest) or end < after:
            raise InputError(
                f"message {i} ({message['role']}): the tokenizer's chat template does not show it as it is"
            )
        if message["role"] == "assistant":
            start = _turn_start(text, opening, after, end, i)
            end += len(_end_of_turn(tokenizer, rest))
        else:
            start = len(before)
            if not text.startswith(before) or start > end:
                raise InputError(f"message {i} ({message['role']}): the chat template changes what stands before it")
        yield _Span(start, end, message["role"])
        after = end


def _opening(tokenizer: Any, messages: Sequence[Message], thinking: bool | None) -> str:
    """Return what the template writes to open the assistant's turn, as in the prompt that the turn answers."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    asked = messages[:first]
    if not asked:
        raise InputError("a conversation begins with the assistant; the chat template cannot open its turn")
    closed, opened = (render_chat(tokenizer, asked, thinking, begin) for begin in (None, ""))
    if not opened.startswith(closed) or opened == closed:
        raise InputError("the tokenizer's chat template does not open the assistant's turn (add_generation_prompt)")
    return opened[len(closed) :]


def _turn_start(text: str, opening: str, after: int, end: int, i: int) -> int:
    """Return where the assistant's words begin, behind the opening of its turn.

    With thinking off an opening holds an empty thought, which templates leave out of earlier turns: then the line that
    names the assistant is what opened it.
    """
    header = opening[: opening.index("\n") + 1] if "\n" in opening else opening
    for words in (opening, header):
        at = text.find(words, after)
        if words and 0 <= at <= end - len(words):
            return at + len(words)
    raise InputError(
        f"message {i} (assistant): the chat template opens this turn in another way than the one asked for"
    )


def _end_of_turn(tokenizer: Any, rest: str) -> str:
    """Return the special token that stands right behind a message, which its author wrote to end it."""
    special = [str(token) for token in tokenizer.get_added_vocab()]
    return max((token for token in special if rest.startswith(token)), key=len, default="")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
