"""The HTTP server of a model and its adapters."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from jaxrl_sql.config import EvaluateSettings, ExecutorConfig
from jaxrl_sql.inference.policy_client import open_policy_client
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.models.lora import load_adapters, policy_params
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.rollout import Engine
from jaxrl_sql.serving.chats import ChatSettings
from jaxrl_sql.serving.loading import reject_while_loading
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError

NEEDED = "serving needs the packages starlette, uvicorn and pydantic: pip install 'jaxrl-sql[serve]'"


def serve(
    engines_context: AbstractContextManager[Mapping[str, Engine]],
    chats: Mapping[str, ChatSettings],
    max_new_tokens: int,
    host: str,
    port: int,
    queue: int,
    announce: Callable[[str], object],
) -> None:
    """Serve engines by name, as `open_engines` opens them, until Ctrl-C or SIGTERM.

    `chats` are the chat settings of trained models by the engine's name. An answer has at most `max_new_tokens` tokens.
    At most `queue` requests wait. Requests get 503 while the engines load. `announce` gets a line with the address at
    once, and another when the server is ready. Raises InputError for a missing package, an address that is not
    available, and as `open_engines` does.
    """
    try:
        import uvicorn  # noqa: PLC0415 - an optional package

        from jaxrl_sql.serving.app import make_app  # noqa: PLC0415
        from jaxrl_sql.serving.batcher import Batcher  # noqa: PLC0415
    except ImportError as error:
        raise InputError(NEEDED) from error
    with _open_socket(host, port) as listener, ExitStack() as stack:
        address, port = listener.getsockname()[:2]
        url = f"http://[{address}]:{port}/v1" if ":" in address else f"http://{address}:{port}/v1"
        announce(f"{url}: loading; requests get 503 until it is ready")
        with reject_while_loading(listener):
            engines = stack.enter_context(engines_context)
        batcher = Batcher(engines, queue)
        stack.enter_context(batcher.running())
        app = make_app(batcher, max_new_tokens, ip_address(address).is_loopback, chats)
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=5, lifespan="off"
        )
        announce(f"{url} serves {', '.join(engines)}")
        uvicorn.Server(settings).run(sockets=[listener])


@contextmanager
def open_engines(
    policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig, name: str, adapters: Sequence[tuple[str, Path]]
) -> Iterator[dict[str, Engine]]:
    """Open a model and its adapters, and yield their engines by name; they share the model's weights.

    `limits` are those of the executor, `name` is the name of the model, and `adapters` are (name, folder) of adapters
    in PEFT's format. Raises InputError if a file cannot be read, and for a duplicate name.
    """
    with (
        make_executor(limits, policy.data.hide) as executor,
        open_policy_client(policy, executor, cfg.max_num_seqs, Purpose.EVAL, cfg.sampling.max_new_tokens) as client,
    ):
        base = client.engine
        if not isinstance(base, Engine):
            raise InputError("serve supports one replica of the model: rollout.mesh=training")
        # Requests differ in their number of samples; rounding it lets them share compiled programs.
        engine_config = replace(base.config, rounds_groups=True)
        engines = {name: Engine(base.model, base.params, base.tokenizer, engine_config)}
        for label, folder in adapters:
            if label in engines:
                raise InputError(f"--adapter {label}={folder}: the name {label} is taken")
            params = policy_params(load_adapters(folder, base.model), base.params)
            engines[label] = Engine(base.model, params, base.tokenizer, engine_config)
        for engine in engines.values():  # tables of the vocabulary are computed once for all
            engine.vocabulary = base.vocabulary
        yield engines


def _open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises InputError if the address is not available."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: {reason}; another --port, or 0 for any, may be free") from error
