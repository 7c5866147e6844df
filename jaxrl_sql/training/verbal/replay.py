"""Answer verbal RL's requests with the local engine or an endpoint, through a journal that records every answer.

The next request depends on the answers alone. So a run that was killed requests everything again, gets the known
answers from the journal and the rest from the model, and has the same result.

A question has two *stages*, sampling candidates and judging them; a *round* is one repetition of a stage.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxrl_sql.rollout import AnyEngine
from jaxrl_sql.runtime.budget import Usage
from jaxrl_sql.runtime.endpoint import Endpoint, EndpointAnswer, Messages
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.training.verbal.judging import RequestSampler, SamplingRequest
from jaxrl_sql.types import Fields, InputError, JaxrlSqlError

# After this number of failures, or twice the concurrency if that is more, without an answer a round is given up.
_MAX_FAILURES = 8
_Key = tuple[str, str, int, int]  # question id, stage, round, index of the answer in its request
Answers = tuple[SamplingRequest, int, Sequence[str | None], Sequence[str], Usage]
"""Consecutive answers to a request: the request, the index of the first, texts, finish reasons, and their cost."""


class UnreachableError(JaxrlSqlError):
    """No request of a round was answered, for reasons that may be temporary; `uids` are its questions."""

    def __init__(self, message: str, uids: Collection[str]) -> None:
        super().__init__(message)
        self.uids = frozenset(uids)


@dataclass
class Memory:
    """The answers in a journal, by question, stage, round and index, and the cost `spent` for each question.

    The journal is a file with a JSON record per line. A record has a list of `answers`. Each entry has the texts of one
    request's answers from index `first` on, their finish reasons and their cost. A text is null if the server refused
    the request. Texts are missing if the request failed, which may be tried again.

    Each entry also has the digest of its question. `digests` has the current digests by question id; InputError if a
    question has changed since.
    """

    journal: Journal
    digests: Mapping[str, str] = field(default_factory=dict)
    spent: dict[str, Usage] = field(default_factory=dict)
    _texts: dict[_Key, str | None] = field(default_factory=dict)
    _reasons: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the journal."""
        for record in self.journal.records:
            for answers in record.get("answers", ()):
                if answers["id"] in self.digests and answers.get("asked") != self.digests[answers["id"]]:
                    raise InputError(
                        f"{self.journal.path}: {answers['id']} was answered for a different text, gold or database: "
                        "choose another folder"
                    )
            self._add_record(record)

    @property
    def total(self) -> Usage:
        """Return the cost of all questions."""
        return Usage.total(spent._asdict() for spent in self.spent.values())

    def known_texts(self, request: SamplingRequest) -> dict[int, str | None]:
        """Return the texts of a request's answers that are in the journal, by index; None for a refused answer."""
        keys = {i: (request.uid, request.stage, request.round, i) for i in range(request.sampling.n)}
        return {i: self._texts[key] for i, key in keys.items() if key in self._texts}

    def finish_reasons(self, uid: str) -> dict[str, dict[str, int]]:
        """Return the counts of a question's answers by stage and finish reason."""
        return {stage: dict(sorted((+counts).items())) for stage, counts in self._reasons.get(uid, {}).items()}

    def add(self, answers: Sequence[Answers], error: str = "") -> None:
        """Add answers to the journal in one line, atomically; `error` is the reason of failed or refused ones."""
        entries = [
            {
                "id": r.uid, "asked": self.digests.get(r.uid, ""), "stage": r.stage, "round": r.round, "first": first,
                "texts": [*texts], "finish_reasons": [*reasons], **spent._asdict(),
            }
            for r, first, texts, reasons, spent in answers
        ]  # fmt: skip
        record = {"answers": entries} | ({"error": error} if error else {})
        self.journal.add(record)
        self._add_record(record)

    def _add_record(self, record: Fields) -> None:
        """Add the texts, costs and finish reasons of a journal's record to those in memory."""
        for answers in record.get("answers", ()):
            self.spent[answers["id"]] = self.spent.get(answers["id"], Usage()).plus(Usage.of(answers))
            counts = self._reasons.setdefault(answers["id"], {}).setdefault(answers["stage"], Counter())
            for i, text, reason in zip(itertools.count(answers["first"]), answers["texts"], answers["finish_reasons"]):
                key = (answers["id"], answers["stage"], answers["round"], i)
                counts[reason] += key not in self._texts and text is not None  # a repeated answer counts once
                self._texts[key] = text


def engine_asker(engine: AnyEngine, memory: Memory) -> RequestSampler:
    """Return a `RequestSampler` that calls an engine once per round.

    The journal gets all answers of a round or none. A completion ends at the model's last position at the latest. If
    the engine refuses a request, such as a too long prompt, the journal has the reason.
    """

    def ask(requests: Sequence[SamplingRequest]) -> list[list[str | None]]:
        if any(len(memory.known_texts(request)) < request.sampling.n for request in requests):
            errors: list[str] = []
            memory.add(list(_generate(engine, requests, errors)), errors[-1] if errors else "")
        return [[memory.known_texts(request)[i] for i in range(request.sampling.n)] for request in requests]

    return ask


def _generate(engine: AnyEngine, requests: Sequence[SamplingRequest], errors: list[str]) -> Iterator[Answers]:
    """Yield the engine's answers to each request with their cost, and add the errors of refused ones to `errors`."""
    prompts = [request.prompt for request in requests if not isinstance(request.prompt, str)]
    max_positions = engine.model.max_positions
    samplings = [
        request.sampling.within(max_positions - len(prompt.token_ids))  # limits the number of new tokens
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    texts: list[list[str | None]] = [[None] * request.sampling.n for request in requests]
    reasons = [[""] * request.sampling.n for request in requests]
    sampled_tokens = [0] * len(requests)
    for sample in engine.generate(prompts, samplings):
        if sample.error:
            errors.append(sample.error)
        else:
            texts[sample.prompt_index][sample.index] = sample.text
            reasons[sample.prompt_index][sample.index] = sample.finish_reason
            sampled_tokens[sample.prompt_index] += len(sample.token_ids)
    for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        # The engine prefills a prompt once for all of its answers, so the prompt's tokens count once.
        yield request, 0, texts[i], reasons[i], Usage(request.sampling.n, len(prompt.token_ids), sampled_tokens[i])


def endpoint_asker(
    endpoint: Endpoint, memory: Memory, token_limit: str, on_answer: Callable[[], None] = lambda: None
) -> RequestSampler:
    """Return a `RequestSampler` that sends one request per answer to an endpoint.

    `on_answer` is called after each. `token_limit` is the server's name of the maximum number of new tokens, such as
    `max_tokens`. The sampler raises BudgetSpentError if the endpoint's budget is spent, and UnreachableError if no
    request of a round is answered.
    """

    def ask(requests: Sequence[SamplingRequest]) -> list[list[str | None]]:
        answers = [memory.known_texts(request) for request in requests]
        missing = [
            (request, i)
            for request, texts in zip(requests, answers, strict=True)
            for i in range(request.sampling.n)
            if i not in texts
        ]
        sampling = requests[0].sampling
        options = {"temperature": sampling.temperature, token_limit: sampling.max_new_tokens}
        failed: list[EndpointAnswer] = []
        answered = 0
        for (request, i), answer in endpoint.ask_all(((key, _messages(key[0])) for key in missing), **options):
            # A refusal is final and recorded; after another error, the request may be tried again.
            texts = [None] if answer.refused else [] if answer.error else [answer.text]
            memory.add([(request, i, texts, [answer.finish_reason] * len(texts), answer.spent)], answer.error)
            failed += [answer] if not texts else []
            answered += bool(texts)
            on_answer()
            if not answered and len(failed) >= max(_MAX_FAILURES, 2 * endpoint.concurrency):
                break  # the server does not answer: trying all others would take hours
        if failed and not answered:
            message = f"{endpoint.base_url}: none of {len(failed)} answers arrived: {failed[-1].error}"
            raise UnreachableError(message, {request.uid for request, _ in missing})
        answers = [memory.known_texts(request) for request in requests]
        return [
            [texts.get(i) for i in range(request.sampling.n)] for request, texts in zip(requests, answers, strict=True)
        ]

    return ask


def _messages(request: SamplingRequest) -> Messages:
    prompt = request.prompt
    return [{"role": "user", "content": prompt if isinstance(prompt, str) else prompt.text}]
