"""Chat messages to prompt text: the OpenAI message shape checked, the model's jinja2 template rendered."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

CHAT_ROLES = ("system", "user", "assistant")


def check_messages(messages: Any) -> list[dict[str, str]]:
    """OpenAI chat messages with their content as one string. Raises ValueError naming the first wrong one."""
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a non-empty list of {role, content}")
    return [_check_message(i, message) for i, message in enumerate(messages)]


def _check_message(i: int, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise ValueError(f"messages[{i}] is {message!r:.40}; it must be an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in CHAT_ROLES:
        raise ValueError(f"messages[{i}].role is {role!r}; use one of {', '.join(CHAT_ROLES)}")
    if isinstance(content, str):
        return {"role": role, "content": content}
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return {"role": role, "content": "\n".join(part["text"] for part in content)}
    raise ValueError(f'messages[{i}].content must be text, or a list of {{"type": "text", "text": ...}} parts')


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def compile_chat_template(source: str) -> Callable[..., str]:
    """A function `(messages, **special_tokens) -> prompt text`, up to where the assistant's answer begins.

    The template sees the environment Hugging Face documents for chat templates. Raises ValueError when it
    does not compile; so does the function when the template refuses the messages.
    """
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_tag()]
    )
    env.filters["tojson"] = _to_json
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    try:
        template = env.from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(f"the model's chat template does not compile: {_one_line(error)}") from error

    def render(messages: list[dict[str, str]], **special_tokens: str) -> str:
        try:
            # tools and documents are always defined: some templates only ask `tools is not none`
            return template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **special_tokens
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the model's chat template refuses the messages: {_one_line(error)}") from error

    return render


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _generation_tag() -> type:
    """`{% generation %}` marks the assistant's text for training; to serve, its body stands alone."""
    from jinja2 import ext, nodes, parser

    class Generation(ext.Extension):
        tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]  # jinja2 annotates it per instance

        def parse(self, parser: parser.Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes HTML, which would change the prompt
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
