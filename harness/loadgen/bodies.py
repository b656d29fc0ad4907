"""The JSON of one request, for each kind of endpoint the client speaks."""

from __future__ import annotations

import json
from typing import Any, Literal

from workloads import Prompt

Endpoint = Literal["completions", "chat", "generate"]

PATHS: dict[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "generate": "/generate",  # SGLang's own
}


def request_body(
    prompt: Prompt, *, model: str, temperature: float, ignore_eos: bool, endpoint: Endpoint = "completions"
) -> bytes:
    """One streamed request with every count of tokens the server can give.

    `completions` and `generate` send token ids where the prompt has them, else its text; `chat` sends text.
    Raises ValueError where the prompt cannot be said on that endpoint.
    """
    if endpoint == "chat":
        if prompt.text is None:
            raise ValueError("the chat endpoint takes text, this workload has only token ids; take completions")
        body = _openai(prompt, model, temperature, ignore_eos)
        body["messages"] = [{"role": "user", "content": prompt.text}]
    elif endpoint == "completions":
        body = _openai(prompt, model, temperature, ignore_eos)
        body["prompt"] = prompt.token_ids or _text(prompt)
    else:
        body = {"input_ids": prompt.token_ids} if prompt.token_ids else {"text": _text(prompt)}
        body["sampling_params"] = {
            "max_new_tokens": prompt.output_len,
            "temperature": temperature,
            "ignore_eos": ignore_eos,
        }
        body["stream"] = True
    return json.dumps(body, separators=(",", ":")).encode()


def _openai(prompt: Prompt, model: str, temperature: float, ignore_eos: bool) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": prompt.output_len,
        "temperature": temperature,
        "ignore_eos": ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _text(prompt: Prompt) -> str:
    if not prompt.text:
        raise ValueError("a prompt has neither token ids nor text")
    return prompt.text
