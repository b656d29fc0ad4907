"""The message checks and the template environment; test_tokenizer.py compares whole prompts with transformers."""

from __future__ import annotations

from typing import Any

import pytest

from harness.engine.chat_template import check_messages, compile_chat_template

USER = [{"role": "user", "content": "hi"}]


def test_content_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check_messages([{"role": "user", "content": parts, "name": "x"}]) == [{"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages must be a non-empty list"),
        ("hi", "messages must be a non-empty list"),
        ([USER[0], "hi"], r"messages\[1\] is 'hi'; it must be an object"),
        ([{"content": "hi"}], r"messages\[0\].role is None; use one of system, user, assistant"),
        ([{"role": ["user"], "content": "hi"}], r"messages\[0\].role is \['user'\]"),
        ([{"role": "user"}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], r"messages\[0\].content must be text"),
    ],
)
def test_wrong_messages_are_refused_in_one_line(messages: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        check_messages(messages)
    assert "\n" not in str(caught.value)


TRICKY = (
    "{% for m in messages %}\n"
    "    {% if m.role == 'system' %}{% continue %}{% endif %}\n"
    "{{ bos_token }}{{ {'é': '<b>'} | tojson }}{% generation %}{{ m.content }}{% endgeneration %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}>{% endif %}{{ strftime_now('%Y') | length }}{{ tools is none }}"
)
MESSAGES = [{"role": "system", "content": "s"}, *USER, {"role": "assistant", "content": "<&>"}]


def test_the_environment_is_the_documented_one() -> None:
    rendered = compile_chat_template(TRICKY)(MESSAGES, bos_token="<s>")
    assert rendered == '<s>{"é": "<b>"}hi<s>{"é": "<b>"}<&>>4True'


@pytest.mark.model
def test_transformers_renders_the_same() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    theirs, _ = render_jinja_template([MESSAGES], chat_template=TRICKY, add_generation_prompt=True, bos_token="<s>")
    assert compile_chat_template(TRICKY)(MESSAGES, bos_token="<s>") == theirs[0]


def test_what_the_template_refuses_is_a_value_error() -> None:
    template = compile_chat_template("{{ raise_exception('roles\n must alternate') }}")
    with pytest.raises(ValueError, match="template refuses the messages: roles must alternate"):
        template(USER)


def test_the_sandbox_holds() -> None:
    for escape in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].x }}"):
        with pytest.raises(ValueError, match="template refuses the messages"):
            compile_chat_template(escape)(USER)


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(ValueError, match="does not compile"):
        compile_chat_template("{% for %}")
