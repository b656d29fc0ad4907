"""What the server refuses: always an OpenAI-shaped error, and the next request is served."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from running_server import CHAT, COMPLETIONS, CONTEXT, DEADLINE_S, PROMPT, VOCAB, RunningServer, gated, wait_for


def assert_refused(server: RunningServer, answer: tuple[int, Any], status: int, *words: str) -> None:
    got, body = answer
    assert got == status, body
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400
    for word in words:
        assert word in error["message"]
    assert server.complete([1, 2], 2)["usage"]["completion_tokens"] == 2  # the next request is served
    assert server.engine.failure is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"prompt": "a"',
        b"nonsense",
        b"\xff\xfe{}",
        b'{"prompt": "\xe9"}',
        b'{"prompt": "a"} {}',
        b"[" * 100_000,
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_what_is_not_json_is_refused(server: RunningServer, path: str, raw: bytes) -> None:
    assert_refused(server, server.call("POST", path, raw), 400, "not valid JSON")


@pytest.mark.parametrize("raw", [b"[]", b'"prompt"', b"3", b"null", b"true"])
def test_what_is_no_object_is_refused(server: RunningServer, raw: bytes) -> None:
    assert_refused(server, server.call("POST", COMPLETIONS, raw), 400, "JSON object")


@pytest.mark.parametrize("model", ["gpt-4", "", "GLM_TINY", 3, ["glm_tiny"], "x" * 5000, "\ud800"])
def test_an_unknown_model_is_not_found(server: RunningServer, model: Any) -> None:
    answer = server.call("POST", COMPLETIONS, {"model": model, "prompt": "a"})
    assert_refused(server, answer, 404, "glm_tiny")
    assert answer[1]["error"]["code"] == "model_not_found"
    assert answer[1]["error"]["param"] == "model"


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        [],
        [[]],
        ["a", ""],
        [[1], []],
        [-1],
        [VOCAB],
        [2**70],
        [1.0],
        [True],
        [None],
        [1, "a"],
        [[1], "a"],
        [[[1]]],
        {},
        7,
        True,
        "\ud800",
    ],
)
def test_bad_prompts_are_refused(server: RunningServer, prompt: Any) -> None:
    answer = server.call("POST", COMPLETIONS, {"prompt": prompt, "max_tokens": 2})
    assert_refused(server, answer, 400)
    assert answer[1]["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("max_tokens", v) for v in (0, -1, -(10**30), "5", 1.5, True, [], 10**30, CONTEXT)],
        *[("temperature", v) for v in (-0.1, 1e6, "1", True, [], float("nan"), float("inf"), 10**400)],
        *[("seed", v) for v in (-1, 2**63, "1", 1.5, True)],
        *[(key, v) for key in ("stream", "ignore_eos") for v in (1, "true", [])],
        *[("stream_options", v) for v in (True, [], "usage", 0, {"include_usage": 1})],
        *[("n", 2), ("best_of", 3), ("top_p", 0.5), ("top_k", 5), ("min_p", 0.1), ("min_tokens", 1)],
        *[("presence_penalty", 1), ("frequency_penalty", -1), ("repetition_penalty", 1.1), ("logit_bias", {"1": 5})],
        *[("logprobs", 2), ("echo", True), ("suffix", "x"), ("stop", "x"), ("stop", ["x"]), ("stop_token_ids", [1])],
        *[("tools", [{}]), ("response_format", {"type": "json_object"})],
    ],
)
def test_bad_and_unsupported_options_are_refused(server: RunningServer, option: str, value: Any) -> None:
    answer = server.call("POST", COMPLETIONS, {"prompt": "abc", option: value})
    assert_refused(server, answer, 400)
    assert answer[1]["error"]["param"] in (option, "include_usage")


def test_neutral_values_of_unsupported_options_are_served(server: RunningServer) -> None:
    neutral = {"n": 1, "top_p": 1.0, "stop": [], "echo": False, "presence_penalty": 0, "logprobs": None, "user": "me"}
    assert server.complete("abc", 2, **neutral)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hi",
        [{}],
        [{"role": "robot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [3],
    ],
)
def test_bad_messages_are_refused(server: RunningServer, messages: Any) -> None:
    answer = server.call("POST", CHAT, {"messages": messages})
    assert_refused(server, answer, 400, "messages")
    assert answer[1]["error"]["param"] == "messages"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_longer_than_the_context_is_refused(server: RunningServer, path: str) -> None:
    long = "x" * (CONTEXT + 1)
    body = {"prompt": long} if path == COMPLETIONS else {"messages": [{"role": "user", "content": long}]}
    answer = server.call("POST", path, body)
    assert_refused(server, answer, 400, f"context of {CONTEXT}")
    assert answer[1]["error"]["code"] == "context_length_exceeded"


def test_what_can_never_fit_the_budget_is_refused_at_once(server: RunningServer) -> None:
    """450 positions are within the context and beyond the host pool. Refused with the engine standing still."""
    body = {"prompt": PROMPT, "max_tokens": 5}
    with gated(server.engine) as gate, server.open(COMPLETIONS, body):
        wait_for(lambda: server.engine.num_running == 1, "the request's start")
        answer = server.call("POST", COMPLETIONS, {"prompt": [[1, 2], [1] * 400], "max_tokens": 50})
        assert (server.engine.num_running, server.engine.num_waiting) == (1, 0)
        assert gate.steps == 0
    assert_refused(server, answer, 400, "400 + 50 tokens", "host", "raise engine.host_kv_budget")
    assert answer[1]["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", COMPLETIONS, 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/models", 405),
    ],
)
def test_wrong_paths_and_methods_are_refused(server: RunningServer, method: str, path: str, status: int) -> None:
    assert_refused(server, server.call(method, path), status, method, path)


def test_a_body_that_claims_to_be_gzip_is_refused(server: RunningServer) -> None:
    answer = server.call("POST", COMPLETIONS, b'{"prompt": "a"}', **{"Content-Encoding": "gzip"})
    assert_refused(server, answer, 400, "cannot be read")


def test_an_error_of_ours_is_an_openai_error_too(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.server._tokenizer, "encode", lambda text: 1 / 0)
    status, body = server.call("POST", COMPLETIONS, {"prompt": "a"})
    assert status == 500
    assert body["error"]["type"] == "server_error"
    assert "ZeroDivision" not in json.dumps(body)


def test_parsing_a_long_prompt_leaves_the_others_served(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsing, go_on = server.server._parser.parse_completion, threading.Event(), threading.Event()

    def slow(raw: bytes) -> Any:
        if len(raw) > 50_000:
            parsing.set()
            assert go_on.wait(DEADLINE_S)
        return parse(raw)

    monkeypatch.setattr(server.server._parser, "parse_completion", slow)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(server.call, "POST", COMPLETIONS, {"prompt": "x" * 60_000})
        assert parsing.wait(DEADLINE_S)
        assert server.complete("short", 3)["usage"]["completion_tokens"] == 3
        go_on.set()
        assert long.result()[0] == 400
