"""A chat endpoint in OpenAI's format that answers by a script: a real server for tests of clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], Any]


class Requests(list[dict[str, Any]]):
    """The requests that a server received."""


@contextmanager
def serve_script(script: Callable[[int, dict[str, Any]], Reply]) -> Iterator[tuple[str, Requests]]:
    """Answer request number i (from 0) with the script's reply: status, headers, and a text or a message.

    A message gets a usage: one token per word of question and answer. The message's `finish_reason` is the choice's;
    the default is `stop`.
    """
    requests = Requests()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(requests)
                requests.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
            status, headers, reply = script(number, body)
            if isinstance(reply, str):
                text = reply
            elif body.get("stream"):
                headers, text = {"Content-Type": "text/event-stream"} | headers, _events(body, reply)
            else:
                text = json.dumps(_reply(body, reply))
            try:
                self.send_response(status)
                for name, value in ({"Content-Type": "application/json"} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                pass  # the client disconnected

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _reply(body: dict[str, Any], fields: dict[str, str]) -> dict[str, Any]:
    message = {name: text for name, text in fields.items() if name != "finish_reason"}
    usage = {
        "prompt_tokens": sum(len(item["content"].split()) for item in body["messages"]),
        "completion_tokens": sum(len(text.split()) for text in message.values()),
    }
    return {"choices": [{"message": message, "finish_reason": fields.get("finish_reason", "stop")}], "usage": usage}


def _events(body: dict[str, Any], fields: dict[str, str]) -> str:
    """Return a reply as stream events: the message in one piece, its end, and the usage."""
    reply = _reply(body, fields)
    head = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    pieces: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant"} | fields, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": reply["usage"] | {"total_tokens": sum(reply["usage"].values())}},
    ]
    return "".join(f"data: {json.dumps(head | piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"


def assistant(text: str, **more: str) -> Reply:
    return 200, {}, {"content": text, **more}
