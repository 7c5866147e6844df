"""Serve a model as OpenAI's chat and completions: `jaxrl-sql serve --model M` answers at http://127.0.0.1:8000/v1.

M is a run folder, a Hugging Face folder, a name of the hub or a GGUF file. `--adapter NAME=FOLDER`, which may be
repeated, serves M with a run's `adapters/` (PEFT's form) beside it, under a name of its own. Requests beyond
`--queue` are answered with 429 and Retry-After. It listens on this machine alone unless `--host` says otherwise, and
there refuses requests whose Host is another than loopback.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from jaxrl_sql.commands.command import ALL, EXIT_CODES, add_config, report_errors, run_or_print
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.runtime.arguments import Parser
from jaxrl_sql.runtime.folder import CONFIG as RUN_CONFIG
from jaxrl_sql.runtime.model_locator import defaults_for
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError

NEEDED = "serving needs the packages starlette, uvicorn and pydantic: pip install 'jaxrl-sql[serve]'"


@contextmanager
def opened(config: TrainConfig, adapters: Sequence[tuple[str, Path]], name: str) -> Iterator[dict[str, Any]]:
    """Open a model and its adapters, and yield their engines by name; they share the model's weights.

    Raises InputError for what cannot be read, and for a name that is given twice.
    """
    # Slow to import, and what is wrong so far is told before.
    from jaxrl_sql.inference.policy_client import open_policy_client
    from jaxrl_sql.models.lora import load_adapters, policy_params
    from jaxrl_sql.models.ops.rng import Purpose
    from jaxrl_sql.rollout import Engine
    from jaxrl_sql.text2sql.env.executor import make_executor

    cfg = config.evaluate
    with (
        make_executor(config.executor, config.data.hide) as executor,
        open_policy_client(config, executor, cfg.max_num_seqs, Purpose.EVAL, cfg.max_new_tokens) as client,
    ):
        base = client.engine
        if not isinstance(base, Engine):
            raise InputError("serve samples from one copy of the model: rollout.mesh=training")
        engine_config = replace(base.config, rounds_groups=True)
        engines = {name: Engine(base.model, base.params, base.tokenizer, engine_config)}
        for label, folder in adapters:
            if label in engines:
                raise InputError(f"--adapter {label}={folder}: the name {label} is taken")
            params = policy_params(load_adapters(folder, base.model), base.params)
            engines[label] = Engine(base.model, params, base.tokenizer, engine_config)
        for engine in engines.values():
            engine.vocabulary = base.vocabulary
        yield engines


def serve(config: TrainConfig, given: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit code."""
    try:
        import uvicorn

        from jaxrl_sql.serving.app import make_app
        from jaxrl_sql.serving.batcher import Batcher
    except ImportError as error:
        raise InputError(NEEDED) from error
    name = given.name or Path(given.model.rstrip("/")).name
    with (
        _listening(given.host, given.port) as listener,
        opened(config, given.adapter, name) as engines,
        (batcher := Batcher(engines, given.queue)).running(),
    ):
        host, port = listener.getsockname()[:2]
        dates = {name: config.data.date} | {
            label: date_of(folder) or config.data.date for label, folder in given.adapter
        }
        app = make_app(batcher, config.evaluate.max_new_tokens, ip_address(host).is_loopback, dates)
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=5, lifespan="off"
        )
        at = f"[{host}]" if ":" in host else host
        print_text(f"http://{at}:{port}/v1 serves {', '.join(engines)}")
        sys.stdout.flush()
        uvicorn.Server(settings).run(sockets=[listener])
    return 0


def date_of(adapters: Path) -> str:
    """Return the day that a run's adapters were trained with; empty where they do not lie in a run's folder."""
    with suppress(InputError):
        return load_config(adapters.resolve().parent / RUN_CONFIG).data.date
    return ""


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises InputError where the address cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: {reason}; another --port, or 0 for any, may be free") from error


def _adapter(word: str) -> tuple[str, Path]:
    name, is_named, folder = word.partition("=")
    if not (name and is_named and folder):
        raise argparse.ArgumentTypeError(f"NAME=FOLDER, not {word!r}")
    return name, Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, serve, and return the exit code."""
    parser = Parser(description=__doc__)
    add_config(parser, (*ALL, "evaluate", "rollout", "mesh"), EXIT_CODES)
    parser.add_argument(
        "--model", required=True, help="a run folder, a Hugging Face folder, a name of the hub or a GGUF file"
    )
    parser.add_argument("--name", default="", help="what requests call the model (default: the last part of M)")
    parser.add_argument(
        "--adapter", type=_adapter, action="append", default=[], metavar="NAME=FOLDER", help="M with adapters beside it"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="its port; 0 takes a free one (default: %(default)s)")
    parser.add_argument("--queue", type=int, default=256, help="how many requests may wait (default: %(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the defaults")
    given = parser.parse_intermixed_args(arguments)
    if given.queue < 1:
        parser.error(f"--queue must be at least 1, not {given.queue}")
    prepare_process()

    def work() -> int:
        check_keys(given.config, given.overrides)  # before the model is looked for on the hub
        beneath = defaults_for(given.model)
        above = {"model": {"checkpoint": beneath["model"]["checkpoint"]}, "rollout": {"mesh": "training"}}
        config = load_config(given.config, given.overrides, beneath, above)
        return run_or_print(lambda cfg: serve(cfg, given), config, given)

    return report_errors(work)
