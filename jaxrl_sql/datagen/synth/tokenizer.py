"""Train the small BPE tokenizer of the quickstart.

A small policy must learn to copy names. A name therefore has the same tokens in the schema after `(`, in the question
after a space, and in SQL after a dot. Tokens of words never include the preceding space; SQL keywords, punctuation and
operators include the surrounding spaces instead, and each digit is a token. The alphabet is bytes, so there are no
unknown tokens, and decoding restores every text exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from jaxrl_sql.runtime.tokenizer_files import general_tokenizer

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
KEYWORDS = (
    "SELECT DISTINCT FROM WHERE AND OR NOT IN IS NULL LIKE BETWEEN GROUP ORDER BY HAVING LIMIT ASC DESC JOIN LEFT ON "
    "AS UNION ALL INTERSECT EXCEPT WITH CASE WHEN THEN ELSE END EXISTS CAST"
).split()
_WORD = "|".join(sorted(KEYWORDS, key=len, reverse=True))
PATTERN = "|".join(
    (
        rf" ?\b(?:{_WORD})\b(?: (?:{_WORD})\b)* ?",  # FROM, IS NOT NULL, GROUP BY with their spaces
        r"\b(?:COUNT|SUM|AVG|MIN|MAX)\((?:\*\)|DISTINCT )?",  # COUNT(*), AVG(
        r"\bT[0-9]\b\.?",  # aliases
        r" (?:=|!=|<>|<=|>=|<|>|\+|-|\*|/|\|\|) ",  # operators between spaces
        r"[,;:] ?|\)+",  # punctuation; a closing mark leaves the space after it to the keyword that follows
        r"[A-Za-z][a-z]*",  # a word, or a part of one
        r"[0-9]",
        r"\n",
        r" ",
        r"_",
        r"[^\sA-Za-z0-9_]",
        r"\s",
    )
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> Any:
    """Train a byte-level BPE tokenizer of at most `vocab_size` tokens on the texts.

    `vocab_size` must be at least 259: 256 bytes and three special tokens. Returns a tokenizer of transformers'
    interface.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return general_tokenizer(
        tokenizer, pad_token=PAD, eos_token=END, extra_special_tokens=[START], chat_template=CHAT_TEMPLATE
    )
