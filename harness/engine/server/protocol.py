"""The OpenAI wire format: request bodies in, validated; chunks, responses and errors out.

Nothing here knows the engine or HTTP; every refusal is an `APIError`, shaped as OpenAI's clients expect.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from harness.engine.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's own default for /v1/completions
DEFAULT_CHAT_TOKENS = 512


class APIError(Exception):
    """An error response: HTTP status and OpenAI's error object."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status = status
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(kw_only=True, slots=True)
class ParsedRequest:
    prompts: list[list[int]]
    max_tokens: int
    temperature: float
    seed: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


# Options whose absence and neutral value mean the same; any other value would silently change nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "top_p": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "stop": (None, [], ""),
    "stop_token_ids": (None, []),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
}


class RequestParser:
    """Turns bodies into `ParsedRequest`s for one model. `parse_*` raise APIError."""

    def __init__(self, model: str, tokenizer: Tokenizer, vocab_size: int, context_len: int):
        self._model, self._tokenizer = model, tokenizer
        self._vocab_size, self._context_len = vocab_size, context_len

    def parse_completion(self, raw: bytes) -> ParsedRequest:
        body = self._body(raw)
        prompts = self._prompts(body.get("prompt"))
        return self._common(body, prompts, _integer(body, "max_tokens", DEFAULT_COMPLETION_TOKENS))

    def parse_chat(self, raw: bytes) -> ParsedRequest:
        body = self._body(raw)
        try:
            prompt = self._tokenizer.chat(body.get("messages"))  # type: ignore[arg-type]  # it checks the shape
        except ValueError as error:
            raise APIError(400, str(error), param="messages") from error
        key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        room = max(1, self._context_len - len(prompt))
        return self._common(body, [prompt], _integer(body, key, min(DEFAULT_CHAT_TOKENS, room)))

    def _body(self, raw: bytes) -> dict[str, Any]:
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise APIError(400, f"the request body is not valid JSON: {error}") from error
        if not isinstance(body, dict):
            raise APIError(400, "the request body must be a JSON object")
        model = body.get("model")
        if model is not None and model != self._model:
            raise APIError(
                404,
                f"model {model!r:.60} is not served here; the model is {self._model!r}",
                param="model",
                code="model_not_found",
            )
        for key, neutral in _UNSUPPORTED.items():
            if body.get(key) not in neutral:
                raise APIError(400, f"{key}={body[key]!r:.60} is not supported", param=key, code="unsupported_value")
        return body

    def _prompts(self, prompt: Any) -> list[list[int]]:
        """OpenAI allows text, token ids, a list of texts and a list of lists of token ids."""
        if isinstance(prompt, str):
            return [self._encode(prompt)]
        if isinstance(prompt, list) and prompt:
            if all(isinstance(p, str) for p in prompt):
                return [self._encode(p) for p in prompt]
            if all(isinstance(p, list) and p for p in prompt):
                return [self._ids(p) for p in prompt]
            if not any(isinstance(p, (str, list)) for p in prompt):
                return [self._ids(prompt)]
        raise APIError(400, "prompt must be text, token ids, or a list of either, and not be empty", param="prompt")

    def _encode(self, text: str) -> list[int]:
        try:
            ids = self._tokenizer.encode(text)
        except ValueError as error:
            raise APIError(400, str(error), param="prompt") from error
        if not ids:
            raise APIError(400, "prompt is empty", param="prompt")
        return ids

    def _ids(self, ids: list[Any]) -> list[int]:
        for i, token in enumerate(ids):
            if type(token) is not int or not 0 <= token < self._vocab_size:
                raise APIError(
                    400,
                    f"prompt[{i}] = {str(token)[:40]} is not a token id of this model (0 to {self._vocab_size - 1})",
                    param="prompt",
                )
        return ids

    def _common(self, body: dict[str, Any], prompts: list[list[int]], max_tokens: int) -> ParsedRequest:
        if max_tokens < 1:
            raise APIError(400, f"max_tokens={max_tokens} must be at least 1", param="max_tokens")
        longest = max(map(len, prompts))
        if longest + max_tokens > self._context_len:
            raise APIError(
                400,
                f"the prompt of {longest} tokens and max_tokens={max_tokens} together are longer than the "
                f"context of {self._context_len} tokens",
                param="prompt" if longest >= self._context_len else "max_tokens",
                code="context_length_exceeded",
            )
        temperature = _number(body, "temperature", 1.0)
        if not 0 <= temperature <= 100:
            raise APIError(400, f"temperature={temperature} must be between 0 and 100", param="temperature")
        options = {} if body.get("stream_options") is None else body["stream_options"]
        if not isinstance(options, dict):
            raise APIError(400, "stream_options must be an object", param="stream_options")
        seed = None if body.get("seed") is None else _integer(body, "seed", 0)
        if seed is not None and not 0 <= seed < 2**63:
            raise APIError(400, f"seed={seed} must be between 0 and 2**63 - 1", param="seed")
        return ParsedRequest(
            prompts=prompts,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            ignore_eos=_boolean(body, "ignore_eos"),
            stream=_boolean(body, "stream"),
            include_usage=_boolean(options, "include_usage"),
            continuous_usage=_boolean(options, "continuous_usage_stats"),
        )


def _integer(body: dict[str, Any], key: str, default: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if type(value) is not int:
        raise APIError(400, f"{key}={value!r:.60} must be an integer", param=key)
    return value


def _number(body: dict[str, Any], key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if type(value) not in (int, float) or not -1e300 < value < 1e300:  # no NaN, no integer beyond a float
        raise APIError(400, f"{key}={value!r:.60} must be a number", param=key)
    return float(value)


def _boolean(body: dict[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is None:
        return False
    if type(value) is not bool:
        raise APIError(400, f"{key}={value!r:.60} must be true or false", param=key)
    return value


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class ReplyFormat:
    """The objects of one response: `/v1/completions`, or `/v1/chat/completions` with `chat`."""

    def __init__(self, model: str, chat: bool):
        self._chat = chat
        self._base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token: chat announces the role."""
        if not self._chat:
            return []
        return [self._chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])]

    def chunk(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        """One token, or the last: `text` may be empty while a character is incomplete."""
        content = {"delta": {"content": text}} if self._chat else {"text": text, "logprobs": None}
        return self._chunk([{"index": index, **content, "finish_reason": finish_reason}])

    def closing(self, counts: dict[str, int]) -> dict[str, Any]:
        """The usage chunk after the last token, with no choices."""
        return self._chunk([]) | {"usage": counts}

    def whole(self, texts: list[str], reasons: list[str], counts: dict[str, int]) -> dict[str, Any]:
        """The response to a request that does not stream."""
        choices = []
        for index, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
            content: dict[str, Any] = {"text": text}
            if self._chat:
                content = {"message": {"role": "assistant", "content": text}}
            choices.append({"index": index, **content, "logprobs": None, "finish_reason": reason})
        kind = "chat.completion" if self._chat else "text_completion"
        return self._base | {"object": kind, "choices": choices, "usage": counts}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._base | {
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "choices": choices,
        }
