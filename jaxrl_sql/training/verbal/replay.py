"""Answer verbal RL's requests with the local engine or an endpoint, through a journal that records every answer.

What is requested next depends on the answers alone. So a run that was killed requests everything again, gets the known
answers from the journal and the rest from the model, and ends as it would have.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxrl_sql.rollout import AnyEngine
from jaxrl_sql.runtime.budget import Spent
from jaxrl_sql.runtime.endpoint import Answer, Endpoint, Messages
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.training.verbal.judging import Ask, Request
from jaxrl_sql.types import Fields, InputError, JaxrlSqlError

# With so many failures, and twice the requests at a time, before the first answer, no more are sent.
_HOPELESS = 8
_Key = tuple[str, str, int, int]
Answers = tuple[Request, int, Sequence[str | None], Sequence[str], Spent]
"""A request, the number of its first answer here, the texts with their finish reasons, and what they cost."""


class UnreachableError(JaxrlSqlError):
    """No request of a round was answered, for reasons that may pass; `uids` are the questions it was for."""

    def __init__(self, message: str, uids: Collection[str]) -> None:
        super().__init__(message)
        self.uids = frozenset(uids)


@dataclass
class Memory:
    """The answers in a journal, by question, stage, round and number, and the cost of each question.

    A record has a list of `answers`, each of them the texts of one request from its number `first` on (null: refused),
    with their finish reasons and cost; texts are missing where a request failed and may be tried again. `asked` are the
    digests of the questions, which stand in every answer: InputError where one has been answered as another.
    """

    journal: Journal
    asked: Mapping[str, str] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)
    _texts: dict[_Key, str | None] = field(default_factory=dict)
    _reasons: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the journal."""
        for record in self.journal.records:
            for one in record.get("answers", ()):
                if one["id"] in self.asked and one.get("asked") != self.asked[one["id"]]:
                    raise InputError(
                        f"{self.journal.path}: {one['id']} was answered when its text, golds or database were others: "
                        "name another folder"
                    )
            self._take(record)

    @property
    def total(self) -> Spent:
        """Return what all questions together have cost."""
        return Spent.total(spent._asdict() for spent in self.spent.values())

    def known(self, request: Request) -> dict[int, str | None]:
        """Return the texts of a request that are known, by their number."""
        keys = {i: (request.uid, request.stage, request.round, i) for i in range(request.sampling.n)}
        return {i: self._texts[key] for i, key in keys.items() if key in self._texts}

    def finish_reasons(self, uid: str) -> dict[str, dict[str, int]]:
        """Return how many answers for a question ended by each finish reason, by stage."""
        return {stage: dict(sorted((+counts).items())) for stage, counts in self._reasons.get(uid, {}).items()}

    def add(self, answers: Sequence[Answers], error: str = "") -> None:
        """Write answers in one line, which is there whole or not at all."""
        listed = [
            {
                "id": r.uid, "asked": self.asked.get(r.uid, ""), "stage": r.stage, "round": r.round, "first": first,
                "texts": [*texts], "finish_reasons": [*reasons], **spent._asdict(),
            }
            for r, first, texts, reasons, spent in answers
        ]  # fmt: skip
        record = {"answers": listed} | ({"error": error} if error else {})
        self.journal.add(record)
        self._take(record)

    def _take(self, record: Fields) -> None:
        for one in record.get("answers", ()):
            self.spent[one["id"]] = self.spent.get(one["id"], Spent()).plus(Spent.of(one))
            counts = self._reasons.setdefault(one["id"], {}).setdefault(one["stage"], Counter())
            for i, text, reason in zip(itertools.count(one["first"]), one["texts"], one["finish_reasons"]):
                key = (one["id"], one["stage"], one["round"], i)
                counts[reason] += key not in self._texts and text is not None
                self._texts[key] = text


def engine_asker(engine: AnyEngine, memory: Memory) -> Ask:
    """Return an `Ask` that an engine answers, a round at a time: either its whole round is recorded or none of it.

    A completion ends where the model has no position left; the journal has the reason of what the engine refuses.
    """

    def ask(requests: Sequence[Request]) -> list[list[str | None]]:
        if any(len(memory.known(one)) < one.sampling.n for one in requests):
            errors: list[str] = []
            memory.add(list(_generate(engine, requests, errors)), errors[-1] if errors else "")
        return [[memory.known(one)[i] for i in range(one.sampling.n)] for one in requests]

    return ask


def _generate(engine: AnyEngine, requests: Sequence[Request], errors: list[str]) -> Iterator[Answers]:
    """Yield the engine's answers to each request with their cost, and add the errors of refused ones to `errors`."""
    prompts = [one.prompt for one in requests if not isinstance(one.prompt, str)]
    most = engine.model.max_positions
    samplings = [
        one.sampling.within(most - len(prompt.token_ids)) for one, prompt in zip(requests, prompts, strict=True)
    ]
    texts: list[list[str | None]] = [[None] * one.sampling.n for one in requests]
    reasons = [[""] * request.sampling.n for request in requests]
    written = [0] * len(requests)
    for sample in engine.generate(prompts, samplings):
        if sample.error:
            errors.append(sample.error)
        else:
            texts[sample.prompt_index][sample.index] = sample.text
            reasons[sample.prompt_index][sample.index] = sample.finish_reason
            written[sample.prompt_index] += len(sample.token_ids)
    for request, prompt, answers, ends, tokens in zip(requests, prompts, texts, reasons, written, strict=True):
        # The engine prefills a prompt once for all of its answers.
        yield request, 0, answers, ends, Spent(request.sampling.n, len(prompt.token_ids), tokens)


def endpoint_asker(
    endpoint: Endpoint, memory: Memory, token_limit: str, on_answer: Callable[[], None] = lambda: None
) -> Ask:
    """Return an `Ask` that an endpoint answers, each answer by a request of its own, followed by `on_answer`.

    `token_limit` is the server's name for the maximum of tokens. Raises BudgetSpentError, and UnreachableError where
    none of the requests is answered.
    """

    def ask(requests: Sequence[Request]) -> list[list[str | None]]:
        known = [memory.known(one) for one in requests]
        missing = [
            (one, i)
            for one, texts in zip(requests, known, strict=True)
            for i in range(one.sampling.n)
            if i not in texts
        ]
        sampling = requests[0].sampling
        options = {"temperature": sampling.temperature, token_limit: sampling.max_new_tokens}
        failed: list[Answer] = []
        answered = 0
        for (request, i), answer in endpoint.ask_all(((key, _messages(key[0])) for key in missing), **options):
            texts = [None] if answer.refused else [] if answer.error else [answer.text]
            memory.add([(request, i, texts, [answer.finish_reason] * len(texts), answer.spent)], answer.error)
            failed += [answer] if not texts else []
            answered += bool(texts)
            on_answer()
            if not answered and len(failed) >= max(_HOPELESS, 2 * endpoint.concurrency):
                break  # the server does not answer: retrying the others would take hours
        if failed and not answered:
            words = f"{endpoint.base_url}: none of {len(failed)} answers came: {failed[-1].error}"
            raise UnreachableError(words, {one.uid for one, _ in missing})
        known = [memory.known(one) for one in requests]
        return [[texts.get(i) for i in range(one.sampling.n)] for one, texts in zip(requests, known, strict=True)]

    return ask


def _messages(request: Request) -> Messages:
    prompt = request.prompt
    return [{"role": "user", "content": prompt if isinstance(prompt, str) else prompt.text}]
