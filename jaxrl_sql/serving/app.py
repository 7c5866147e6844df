"""The routes of the server: chat and completions, whole or streamed, the models, and its health.

Each request becomes a job of the `Batcher`, whose thread runs the engine and sends samples back as events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxrl_sql.rollout import Engine, NotFiniteError, Sample
from jaxrl_sql.runtime.loopback import is_loopback_host
from jaxrl_sql.serving.batcher import Batcher, Job, QueueFullError
from jaxrl_sql.serving.chats import DEFAULT_CHAT_SETTINGS, ChatSettings
from jaxrl_sql.serving.parameters import RefusedError, check_query
from jaxrl_sql.serving.protocol import ApiRequest, ChatRequest, CompletionRequest, ResponseBuilder, parse_request
from jaxrl_sql.types import InputError, Record

MAX_BODY_BYTES = 16 << 20
"""Largest size of a request's body in bytes."""


class _PendingAnswer:
    """A request whose job is queued, and the job's events, in the server's event loop.

    Raises RefusedError and InputError for an invalid request, and QueueFullError.
    """

    def __init__(
        self, request: ApiRequest, batcher: Batcher, max_tokens: int, chats: Mapping[str, ChatSettings]
    ) -> None:
        engine = _engine(batcher, request.model)
        prompts = request.prompts(engine, chats.get(request.model, DEFAULT_CHAT_SETTINGS))
        self.response_builder = ResponseBuilder(request, prompts, engine)
        self.events: asyncio.Queue[Sample | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(event: Sample | Exception) -> None:  # called in the batcher's thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.events.put_nowait, event)

        sampling = request.sampling(engine, prompts, max_tokens)
        self.job = Job(request.model, prompts, sampling, emit, request.stream)
        batcher.submit(self.job)

    async def samples(self) -> AsyncIterator[Sample]:
        """Yield samples, of a streamed job also partial ones, until all are finished.

        Closing the iterator cancels the job. Raises RefusedError if the job fails.
        """
        remaining = self.job.n_samples
        try:
            while remaining:
                event = await self.events.get()
                if isinstance(event, NotFiniteError):
                    raise RefusedError(str(event), "model_not_finite", status=503)
                if isinstance(event, Exception):
                    raise RefusedError("the engine failed; the server's log has the reason", status=500)
                if event.error:
                    raise RefusedError(event.error)
                remaining -= bool(event.finish_reason)  # a partial sample has none
                yield event
        finally:
            self.job.cancelled = bool(remaining)

    async def complete(self) -> Record:
        """Wait for all samples and return the answer."""
        return self.response_builder.complete([sample async for sample in self.samples()])

    async def stream(self) -> AsyncIterator[str]:
        """Yield the answer as server-sent events."""
        try:
            async for sample in self.samples():
                if event := self.response_builder.event(sample):
                    yield f"data: {json.dumps(event)}\n\n"
            options = self.response_builder.request.stream_options
            if options and options.include_usage:
                yield f"data: {json.dumps(self.response_builder.usage_event())}\n\n"
        except RefusedError as error:
            yield f"data: {json.dumps(error.body())}\n\n"
        yield "data: [DONE]\n\n"


def _engine(batcher: Batcher, model: str) -> Engine:
    """Return the engine of a model; raises RefusedError for a name that is not served."""
    if model not in batcher.engines:
        names = ", ".join(batcher.engines)
        raise RefusedError(f"model {model!r} is not served: {names}", "model_not_found", "model", 404)
    return batcher.engines[model]


def _model_object(model: str) -> Record:
    return {"id": model, "object": "model", "created": 0, "owned_by": "jaxrl_sql"}


class _LoopbackOnly:
    """Refuse requests whose Host header is not a loopback name."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        app = self.app
        if not is_loopback_host(host):
            message = f"Host {host!r} is not this machine's loopback: ask localhost, or serve with --host ADDRESS"
            app = JSONResponse(RefusedError(message).body(), 403)
        await app(scope, receive, send)


def make_app(
    batcher: Batcher,
    max_tokens: int,
    on_loopback: bool = True,
    chats: Mapping[str, ChatSettings] = MappingProxyType({}),
) -> Starlette:
    """Return the application; a completion has at most `max_tokens` tokens.

    `chats` are the chat settings of trained models by the name of the model. `on_loopback`: the server listens on
    loopback, so it refuses requests whose Host header names another host, against DNS rebinding from web pages.
    """

    def completion_endpoint(request_type: type[ApiRequest]) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def answer(http: HttpRequest) -> Response:
            check_query(http.query_params)
            request = parse_request(request_type, await _body(http))
            pending = _PendingAnswer(request, batcher, max_tokens, chats)
            if pending.job.is_streamed:
                return StreamingResponse(pending.stream(), media_type="text/event-stream")
            return await _complete_answer(http, pending)

        return answer

    async def models(http: HttpRequest) -> Response:
        check_query(http.query_params)
        return JSONResponse({"object": "list", "data": [_model_object(name) for name in batcher.engines]})

    async def model(http: HttpRequest) -> Response:
        check_query(http.query_params)
        name = http.path_params["name"]
        _engine(batcher, name)
        return JSONResponse(_model_object(name))

    async def health(_http: HttpRequest) -> Response:
        status = "ok" if batcher.is_alive else "stopped"
        return JSONResponse({"status": status, **batcher.counts}, 200 if batcher.is_alive else 503)

    routes = [
        Route("/v1/chat/completions", completion_endpoint(ChatRequest), methods=["POST"]),
        Route("/v1/completions", completion_endpoint(CompletionRequest), methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
    ]
    errors = (RefusedError, QueueFullError, InputError, HTTPException)
    middleware = [Middleware(_LoopbackOnly)] if on_loopback else []
    return Starlette(routes=routes, middleware=middleware, exception_handlers=dict.fromkeys(errors, _refuse))


async def _complete_answer(http: HttpRequest, pending: _PendingAnswer) -> Response:
    """Return the answer, or an empty response with status 499 if the client disconnects; the job is then cancelled."""
    answer = asyncio.ensure_future(pending.complete())
    disconnected = asyncio.ensure_future(_wait_for_disconnect(http))
    try:
        await asyncio.wait((answer, disconnected), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(answer.result()) if answer.done() else Response(status_code=499)
    finally:
        answer.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _body(http: HttpRequest) -> bytes:
    """Return a request's body; raises RefusedError for one that is too large or encoded."""
    if (encoding := http.headers.get("content-encoding", "identity")) != "identity":
        raise RefusedError(f"Content-Encoding {encoding} is not supported by this server", status=415)
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RefusedError(f"the request has over {MAX_BODY_BYTES} bytes", status=413)
    return bytes(body)


async def _refuse(_http: HttpRequest, error: Exception) -> Response:
    """Answer with OpenAI's error object."""
    if isinstance(error, QueueFullError):
        refused = RefusedError(str(error), "queue_full", status=429)
        return JSONResponse(refused.body(), 429, {"Retry-After": str(error.seconds)})
    if isinstance(error, HTTPException):
        error = RefusedError(error.detail, status=error.status_code)
    refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
    return JSONResponse(refused.body(), refused.status)
