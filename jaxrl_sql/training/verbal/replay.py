"""Answer verbal RL's requests with the local engine or an endpoint, through a journal that records every answer.

The next request depends on the answers alone. So a run that was killed requests everything again, gets the known
answers from the journal and the rest from the model, and has the same result.
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

# No more requests are sent after this many failures, and twice the concurrency, without an answer.
_HOPELESS = 8
_Key = tuple[str, str, int, int]
Answers = tuple[SamplingRequest, int, Sequence[str | None], Sequence[str], Usage]
"""A request, the number of its first answer here, the texts with their finish reasons, and their cost."""


class UnreachableError(JaxrlSqlError):
    """No request of a round was answered, for reasons that may be temporary; `uids` are its questions."""

    def __init__(self, message: str, uids: Collection[str]) -> None:
        super().__init__(message)
        self.uids = frozenset(uids)


@dataclass
class Memory:
    """The answers in a journal, by question, stage, round and number, and the cost of each question.

    A record has a list of `answers`, each of them the texts of one request from its number `first` on (null: refused),
    with their finish reasons and cost; texts are missing where a request failed and may be tried again. Every answer
    has the digest of its question (`digests`): InputError if a question has changed since.
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
            self._take(record)

    @property
    def total(self) -> Usage:
        """Return the cost of all questions."""
        return Usage.total(spent._asdict() for spent in self.spent.values())

    def known_texts(self, request: SamplingRequest) -> dict[int, str | None]:
        """Return the known texts of a request, by number."""
        keys = {i: (request.uid, request.stage, request.round, i) for i in range(request.sampling.n)}
        return {i: self._texts[key] for i, key in keys.items() if key in self._texts}

    def finish_reasons(self, uid: str) -> dict[str, dict[str, int]]:
        """Return the counts of a question's answers by stage and finish reason."""
        return {stage: dict(sorted((+counts).items())) for stage, counts in self._reasons.get(uid, {}).items()}

    def add(self, answers: Sequence[Answers], error: str = "") -> None:
        """Write answers in one line, atomically."""
        listed = [
            {
                "id": r.uid, "asked": self.digests.get(r.uid, ""), "stage": r.stage, "round": r.round, "first": first,
                "texts": [*texts], "finish_reasons": [*reasons], **spent._asdict(),
            }
            for r, first, texts, reasons, spent in answers
        ]  # fmt: skip
        record = {"answers": listed} | ({"error": error} if error else {})
        self.journal.add(record)
        self._take(record)

    def _take(self, record: Fields) -> None:
        for answers in record.get("answers", ()):
            self.spent[answers["id"]] = self.spent.get(answers["id"], Usage()).plus(Usage.of(answers))
            counts = self._reasons.setdefault(answers["id"], {}).setdefault(answers["stage"], Counter())
            for i, text, reason in zip(itertools.count(answers["first"]), answers["texts"], answers["finish_reasons"]):
                key = (answers["id"], answers["stage"], answers["round"], i)
                counts[reason] += key not in self._texts and text is not None
                self._texts[key] = text


def engine_asker(engine: AnyEngine, memory: Memory) -> RequestSampler:
    """Return a `RequestSampler` that calls an engine once per round; the whole round is recorded or none of it.

    A completion ends at the model's last position; the journal has the reason of refused requests.
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
        request.sampling.within(max_positions - len(prompt.token_ids))
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    texts: list[list[str | None]] = [[None] * request.sampling.n for request in requests]
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
        yield request, 0, answers, ends, Usage(request.sampling.n, len(prompt.token_ids), tokens)


def endpoint_asker(
    endpoint: Endpoint, memory: Memory, token_limit: str, on_answer: Callable[[], None] = lambda: None
) -> RequestSampler:
    """Return a `RequestSampler` that sends one request per answer to an endpoint, and then calls `on_answer`.

    `token_limit` is the server's name for the maximum of tokens. Raises BudgetSpentError, and UnreachableError if no
    request is answered.
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
            texts = [None] if answer.refused else [] if answer.error else [answer.text]
            memory.add([(request, i, texts, [answer.finish_reason] * len(texts), answer.spent)], answer.error)
            failed += [answer] if not texts else []
            answered += bool(texts)
            on_answer()
            if not answered and len(failed) >= max(_HOPELESS, 2 * endpoint.concurrency):
                break  # the server does not answer: retrying the others would take hours
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
