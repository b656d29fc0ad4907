"""How the paced server can behave on the wire: each is something a public tracker or a real server has shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Usage = Literal["continuous", "final", "zeros", "none"]
Failure = Literal[
    "error_event", "error_object", "abort", "close", "reset", "hang", "pings", "not_json", "not_sse", "huge_count"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """The truth is `first_s` from a request's arrival to its first token and `step_s` for each one more."""

    first_s: float = 0.2
    step_s: float = 0.01
    pattern: tuple[int, ...] = (1,)  # tokens per event, repeated
    bundle: int = 1  # events written together
    split_s: float = 0.0  # an event is written in two halves, this much apart
    opening: Literal["", "role", "empty", "comment"] = ""  # sent at once, before the first token
    headers_at_once: bool = True  # else with the first token
    usage: Usage = "continuous"
    usage_late_s: float = 0.0
    reasoning: bool = False  # the first half comes as reasoning_content (chat)
    silent_text: int = 0  # every so many tokens one has no text (half a character)
    held_text: float = 0.0  # the text of this share of the tokens comes with the next one
    held_events: bool = False  # and their events do not come at all
    odd_text: bool = False  # texts that look like the protocol
    end: Literal["", "no_done", "done_only", "nothing", "hang"] = ""
    finish_reason: str = "length"
    framing: Literal["chunked", "close"] = "chunked"  # close: until the connection ends
    line_end: Literal["\n", "\r\n", "\r"] = "\n"
    bom: bool = False  # a byte order mark before the first event
    interim: bool = False  # a 103 before the response
    hang_up: bool = False  # closes each connection after its response, without saying so
    extra_tokens: int = 0
    extra_prompt_tokens: int = 0
    incremental: bool = False  # /generate: only what is new in each event
    status: int = 200
    location: str = ""
    answer: dict[str, Any] | None = None  # all of the response, as plain JSON
    fail_at: int | None = None  # token before which `failure` happens
    failure: Failure | None = None
    refuse_body: bool = False  # answers once it has the headers, and closes
    # what a client must make of it
    expect: str | None = None  # the failure class of its requests
    hidden: bool = False  # the wire does not carry the tokens' times: to be said, not guessed


SCENARIOS: dict[str, Scenario] = {
    "plain": Scenario(),
    "role_first": Scenario(opening="role"),
    "empty_first": Scenario(opening="empty", usage="final"),
    "comments": Scenario(opening="comment"),
    "late_headers": Scenario(headers_at_once=False),
    "four_per_event": Scenario(pattern=(4,)),
    "four_per_event_final_usage": Scenario(pattern=(4,), usage="final"),
    "speculative": Scenario(pattern=(1, 3, 2, 4)),
    "bundled": Scenario(bundle=3),
    "split_events": Scenario(split_s=0.003),
    "crlf": Scenario(line_end="\r\n"),
    "cr": Scenario(line_end="\r"),
    "byte_order_mark": Scenario(bom=True, opening="comment"),
    "until_close": Scenario(framing="close"),
    "hang_up": Scenario(hang_up=True),
    "interim": Scenario(interim=True),
    "final_usage": Scenario(usage="final"),
    "zero_usage": Scenario(usage="zeros"),
    "late_usage": Scenario(usage_late_s=0.3),
    "reasoning": Scenario(reasoning=True, opening="role"),
    "half_characters": Scenario(silent_text=3),
    "odd_text": Scenario(odd_text=True),
    "held_text": Scenario(held_text=0.5),
    "no_done": Scenario(end="no_done"),
    "done_and_hang": Scenario(end="hang"),
    "incremental": Scenario(incremental=True),
    # what the wire does not say
    "held_text_final_usage": Scenario(held_text=0.5, usage="final", hidden=True),
    "held_events": Scenario(held_text=0.5, held_events=True, hidden=True),
    # failures
    "error_event": Scenario(fail_at=3, failure="error_event", expect="stream_error"),
    "error_at_once": Scenario(fail_at=0, failure="error_event", expect="stream_error"),
    "error_object": Scenario(fail_at=3, failure="error_object", expect="stream_error"),
    "abort": Scenario(fail_at=3, failure="abort", expect="stream_error"),
    "error_as_json": Scenario(answer={"error": {"message": "bad day"}}, expect="stream_error"),
    "plain_json": Scenario(answer={"choices": [{"text": "x"}]}, expect="malformed"),
    "http_400": Scenario(status=400, expect="http_4xx"),
    "http_429": Scenario(status=429, expect="http_4xx"),
    "http_500": Scenario(status=500, expect="http_5xx"),
    "http_503": Scenario(status=503, expect="http_5xx"),
    "redirect": Scenario(status=307, location="http://elsewhere/v1", expect="malformed"),
    "body_refused": Scenario(status=413, refuse_body=True, expect="http_4xx"),
    "no_token": Scenario(fail_at=0, failure="hang", expect="timeout_first_token"),
    "role_then_no_token": Scenario(fail_at=0, failure="hang", opening="role", expect="timeout_first_token"),
    "pings_and_no_token": Scenario(fail_at=0, failure="pings", expect="timeout_first_token"),
    "stall": Scenario(fail_at=3, failure="hang", expect="timeout_idle"),
    "stall_with_pings": Scenario(fail_at=3, failure="pings", expect="timeout_idle"),
    "closed": Scenario(fail_at=3, failure="close", expect="early_stop"),
    "closed_at_once": Scenario(fail_at=0, failure="close", expect="early_stop"),
    "reset": Scenario(fail_at=3, failure="reset", expect="early_stop"),
    "done_midway": Scenario(end="done_only", extra_tokens=-3, usage="final", expect="early_stop"),
    "huge_count": Scenario(fail_at=3, failure="huge_count", expect="malformed"),
    "ends_midway": Scenario(end="nothing", extra_tokens=-3, expect="early_stop"),
    "too_short": Scenario(extra_tokens=-3, expect="wrong_length"),
    "too_long": Scenario(extra_tokens=2, expect="wrong_length"),
    "no_usage": Scenario(usage="none", expect="malformed"),
    "not_json": Scenario(fail_at=3, failure="not_json", expect="malformed"),
    "not_sse": Scenario(fail_at=3, failure="not_sse", expect="malformed"),
}
