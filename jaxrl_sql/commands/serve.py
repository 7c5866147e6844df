"""Serve a model with an OpenAI-compatible API: `jaxrl-sql serve --model M` listens at http://127.0.0.1:8000/v1.

M is a run folder, a Hugging Face folder, a hub name or a GGUF file. `--adapter NAME=FOLDER`, which may be repeated,
additionally serves M with a run's `adapters/` (PEFT format) under NAME. Requests beyond `--queue` get 429 and
Retry-After. It listens on loopback only unless `--host` is set, and there rejects requests whose Host is not loopback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.arguments import EXIT_CODES, MODEL_HELP, Parser, add_config
from jaxrl_sql.commands.running import report_errors, run_or_print
from jaxrl_sql.config import EvaluateConfig, EvaluateSettings, ExecutorConfig, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.runtime.model_locator import defaults_for, find_trained
from jaxrl_sql.runtime.terminal import print_text


def _serve(policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig, args: argparse.Namespace) -> int:
    from jaxrl_sql.serving.chats import DEFAULT_CHAT_SETTINGS, adapters_chat, served_chat
    from jaxrl_sql.serving.server import open_engines, serve

    name = args.name or Path(args.model.rstrip("/")).name
    engines = open_engines(policy, cfg, limits, name, args.adapter)
    _, trained = find_trained(args.model)
    chat = DEFAULT_CHAT_SETTINGS._replace(date=policy.data.chat.date)
    if trained is not None:
        chat = served_chat(policy.recipe, policy.data)
    chats = {name: chat} | {label: adapters_chat(folder, chat) for label, folder in args.adapter}
    serve(engines, chats, cfg.sampling.max_new_tokens, args.host, args.port, args.queue, _announce)
    return 0


def _announce(line: str) -> None:
    print_text(line)
    sys.stdout.flush()


def _adapter(text: str) -> tuple[str, Path]:
    """Parse the value NAME=FOLDER of `--adapter`."""
    name, equals_sign, folder = text.partition("=")
    if not (name and equals_sign and folder):
        raise argparse.ArgumentTypeError(f"NAME=FOLDER, not {text!r}")
    return name, Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, serve, and return the exit code."""
    parser = Parser(description=__doc__)
    add_config(parser, EvaluateConfig, EXIT_CODES)
    parser.add_argument("--model", required=True, help=MODEL_HELP)
    parser.add_argument("--name", default="", help="name of the model in requests (default: the last part of M)")
    parser.add_argument(
        "--adapter",
        type=_adapter,
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="also serve M with the adapters in FOLDER (PEFT format), under NAME",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="its port; 0 uses a free one (default: %(default)s)")
    parser.add_argument("--queue", type=int, default=256, help="maximum number of waiting requests (%(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the defaults")
    args = parser.parse_intermixed_args(arguments)
    if args.queue < 1:
        parser.error(f"--queue must be at least 1, not {args.queue}")
    prepare_process()

    def work() -> int:
        check_keys(EvaluateConfig, args.config, args.overrides)  # before the model is looked up on the hub
        defaults = defaults_for(args.model)
        option_values = {"model": {"checkpoint": defaults["model"]["checkpoint"]}, "rollout": {"mesh": "training"}}
        config = load_config(EvaluateConfig, args.config, args.overrides, defaults, option_values)
        return run_or_print(
            lambda cfg: _serve(policy_spec(cfg), cfg.evaluate, cfg.executor, args),
            config,
            args,
        )

    return report_errors(work)
