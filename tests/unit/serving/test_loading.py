"""The server's answers while the model loads, over a real socket."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest

from jaxrl_sql.serving.loading import RETRY_AFTER_S, reject_while_loading


@pytest.mark.parametrize(("path", "body"), [("/health", None), ("/v1/chat/completions", b'{"model": "m"}')])
def test_requests_get_503_while_loading_and_the_socket_stays_open(path: str, body: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        with reject_while_loading(listener), pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(urllib.request.Request(url, body), timeout=30)
        answer = json.loads(refusal.value.read())
        assert (refusal.value.code, refusal.value.headers["Retry-After"]) == (503, str(RETRY_AFTER_S))
        assert (answer["status"], answer["error"]["code"]) == ("loading", "model_loading")
        assert "the model is loading (0 s so far)" in answer["error"]["message"]
        with socket.create_connection(listener.getsockname(), timeout=30), listener.accept()[0] as accepted:
            assert accepted.fileno() > 0
