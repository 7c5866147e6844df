"""Values named by synonyms in a question, by static word vectors."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from jaxrl_sql.config import DataConfig, RetrievalConfig, TrainConfig, load_config
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.schema.synonyms import find_alike, load_vectors
from jaxrl_sql.types import Example, InputError

SMALL = Path(__file__).parents[3] / "small.yaml"

SCRIPT = """
CREATE TABLE singer(id INTEGER PRIMARY KEY, name TEXT, country TEXT, isMale TEXT, song TEXT);
INSERT INTO singer VALUES (1, 'Ann', 'France', 'T', 'France'), (2, 'Bo', 'Belgium', 'F', 'Sun of France'),
  (3, 'Cy', 'Netherlands', 'F', 'Car');
"""
# In the plane: France is near French, Belgium near both, and unrelated words far away.
VECTORS = {
    "france": (1.0, 0.0), "french": (0.95, 0.31), "belgium": (0.75, 0.66), "netherlands": (-0.9, 0.44),
    "low": (-1.0, 0.0), "countries": (-0.6, 0.8), "car": (0.0, -1.0), "song": (0.1, -1.0), "male": (0.0, -1.0),
    "from": (1.0, 0.1), "f": (-1.0, 0.1),
}  # fmt: skip


def make_vectors(folder: Path, vectors: Mapping[str, Sequence[float]] = VECTORS, key: str = "embeddings") -> str:
    """Write word vectors in Model2Vec's format: a token per word, and one for unknown words, without a meaning."""
    message = [*vectors, "[UNK]"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(message)}, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.array([*vectors.values(), (5.0, 5.0)], np.float32)
    save_file({key: table}, folder / "model.safetensors")
    return str(folder)


def make_example(folder: Path, question: str, evidence: str = "") -> Example:
    path = folder / "d.sqlite"
    if not path.exists():
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(SCRIPT)
    return Example("q", "d", str(path), question, "SELECT 1", evidence)


MEANT = [("singer", "country", "France"), ("singer", "song", "France")]


@pytest.mark.parametrize(
    ("question", "evidence", "result"),
    [
        ("How old are French singers?", "", MEANT),
        ("How old are they?", "Gauls are French", MEANT),
        ("Those of the Low Countries", "", [("singer", "country", "Netherlands")]),  # by two words together
        ("Ann and French ones", "", [("singer", "name", "Ann"), *MEANT]),  # a literal match comes first
        ("Those from France", "", MEANT),  # a literal match, and "from" has no meaning
        ("Which songs?", "", []),  # a word of the schema names a column, not a value
        ("Which male ones?", "", []),
        ("Which f?", "", [("singer", "isMale", "F")]),  # by its letter alone, not by similarity
        ("Who is unheard of?", "", []),
        ("", "", []),
    ],
)
def test_synonyms_of_values_are_found(
    tmp_path: Path, question: str, evidence: str, result: list[tuple[str, str, str]]
) -> None:
    folder = make_vectors(tmp_path / "vectors")
    assert list(find_alike(make_example(tmp_path, question, evidence), 20, folder)) == result


def test_number_of_matches_is_limited_and_vectors_are_optional(tmp_path: Path) -> None:
    item = make_example(tmp_path, "Ann and French ones")
    folder = make_vectors(tmp_path / "vectors")
    assert find_alike(item, 2, folder) == (("singer", "name", "Ann"), MEANT[0])
    assert find_alike(item, 1, folder) == find_alike(item, 20, "") == (("singer", "name", "Ann"),)


def test_other_layouts_of_the_same_vectors(tmp_path: Path) -> None:
    plain = load_vectors(make_vectors(tmp_path / "plain"))
    nested = make_vectors(tmp_path / "nested" / "0_StaticEmbedding", key="embedding.weight")
    assert np.array_equal(load_vectors(str(Path(nested).parent)).table, plain.table)
    # Two tokens share a vector, and each has its own weight.
    shared = Path(make_vectors(tmp_path / "shared"))
    mapping = np.arange(len(VECTORS) + 1)
    mapping[1] = 0
    weights = np.linspace(1, 2, len(mapping), dtype=np.float32)
    save_file({"embeddings": plain.table, "mapping": mapping, "weights": weights}, shared / "model.safetensors")
    assert np.allclose(load_vectors(str(shared)).table, plain.table[mapping] * weights[:, None])


def test_text_vector_is_the_mean_of_its_known_words(tmp_path: Path) -> None:
    vectors = load_vectors(make_vectors(tmp_path / "vectors"))
    both = np.array([1.95, 0.31]) / np.hypot(1.95, 0.31)
    assert np.allclose(vectors.of(["France, unheard of French", "unheard", ""]), [both, (0, 0), (0, 0)], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "no model.safetensors there"),
        (
            lambda folder: Path(make_vectors(folder), "tokenizer.json").unlink(),
            "no tokenizer.json there",
        ),
        (lambda folder: make_vectors(folder, key="lm_head"), "has no table of word vectors .*, but lm_head"),
        (lambda folder: Path(make_vectors(folder), "model.safetensors").write_bytes(b"x"), "cannot be read"),
        (lambda folder: Path(make_vectors(folder), "tokenizer.json").write_text("{}"), "cannot be read"),
        (
            lambda folder: save_file({"embeddings": np.zeros((3, 2))}, Path(make_vectors(folder), "model.safetensors")),
            "12 tokens, but 3 word vectors",
        ),
    ],
)
def test_folder_without_vectors_is_reported_in_one_line(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    make(tmp_path)
    with pytest.raises(InputError, match=message) as result:
        find_alike(make_example(tmp_path, "French ones"), 20, str(tmp_path))
    assert "\n" not in str(result.value)


def test_prompt_shows_synonym_matches(tmp_path: Path) -> None:
    class Characters:
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens
            return list(map(ord, text))

    data = DataConfig(
        prompt="compact", retrieval=RetrievalConfig(top_k=20, synonyms=make_vectors(tmp_path / "vectors"))
    )
    style = RECIPES["sql_r1"].style_for(data)
    (prompt,) = make_prompts([make_example(tmp_path, "French ones")], style, Characters(), 10_000).prompts
    assert "Values in the database: singer.country = 'France'; singer.song = 'France'\nQ: French ones" in prompt.text


def test_synonyms_require_shown_values() -> None:
    with pytest.raises(
        InputError, match=r"data\.retrieval\.synonyms=vectors extends the retrieved values.* set data\.retrieval\.top_k"
    ):
        load_config(TrainConfig, SMALL, ["data.retrieval.synonyms=vectors"])
