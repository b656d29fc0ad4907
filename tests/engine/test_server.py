"""The HTTP side over a real engine: completions, chat, streams, information."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_server import CHAT, COMPLETIONS, CONTEXT, PROMPT, VOCAB, RunningServer, gated, held_until, wait_for


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_completion_as_a_whole_and_as_a_stream_are_the_same_text(server: RunningServer) -> None:
    reply = server.complete(PROMPT, 20)
    assert reply["object"] == "text_completion"
    assert reply["model"] == "glm_tiny"
    (choice,) = reply["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert reply["usage"] == {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50}
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    chunks = server.stream(COMPLETIONS, body)
    assert text_of(chunks) == choice["text"] != ""
    assert len(chunks) == 20
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 19 + ["length"]
    assert all("usage" not in c for c in chunks)
    assert len({c["id"] for c in chunks}) == 1


def test_usage_comes_last_and_with_every_chunk_when_asked(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "hello", "max_tokens": 7, "ignore_eos": True, "stream_options": options}
    *chunks, last = server.stream(COMPLETIONS, body)
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == [1, 2, 3, 4, 5, 6, 7]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def test_text_is_its_tokens(server: RunningServer) -> None:
    assert server.complete("né", 5)["usage"]["prompt_tokens"] == 3
    assert server.complete("né", 5)["choices"] == server.complete(list("né".encode()), 5)["choices"]


@pytest.mark.parametrize("prompts", [["one", "another one", "x"], [[1, 2, 3], [400], [9] * 40]])
def test_a_list_of_prompts_gives_a_choice_each(server: RunningServer, prompts: list[Any]) -> None:
    reply = server.complete(prompts, 9)
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
    alone = [server.complete(prompt, 9)["choices"][0]["text"] for prompt in prompts]
    assert [c["text"] for c in reply["choices"]] == alone
    chunks = server.stream(COMPLETIONS, {"prompt": prompts, "max_tokens": 9, "temperature": 0, "ignore_eos": True})
    assert [text_of(chunks, i) for i in range(3)] == alone
    assert reply["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert reply["usage"]["completion_tokens"] == 27


def test_chat_streams_the_role_first(server: RunningServer) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    body = {"messages": messages, "max_completion_tokens": 6, "temperature": 0, "ignore_eos": True}
    first, *chunks = server.stream(CHAT, body)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert len(chunks) == 6
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks)
    status, whole = server.call("POST", CHAT, body)
    assert status == 200
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert whole["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("length", [1, 2, 30])
def test_ignore_eos_gives_exact_lengths(server: RunningServer, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(server.engine, "_eos_ids", frozenset(range(VOCAB)))  # whatever comes is an EOS
    assert server.complete([5], length)["usage"]["completion_tokens"] == length
    stopped = server.complete([5], length, ignore_eos=False)
    assert stopped["usage"]["completion_tokens"] == 1
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_eos_stops_where_the_model_says_it(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    accept = server.engine._executor._accept

    def spy(request_id: int, token: int, result: Any) -> None:
        seen.append(token)
        accept(request_id, token, result)

    monkeypatch.setattr(server.engine._executor, "_accept", spy)
    server.complete(PROMPT, 12)
    eos = seen[5]
    monkeypatch.setattr(server.engine, "_eos_ids", frozenset([eos]))
    stopped = server.complete(PROMPT, 12, ignore_eos=False)
    assert stopped["usage"]["completion_tokens"] == seen.index(eos) + 1
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_temperature_with_a_seed_repeats_itself_and_without_does_not(server: RunningServer) -> None:
    hot = {"temperature": 1.5}
    assert (
        server.complete(PROMPT, 12, seed=7, **hot)["choices"] == server.complete(PROMPT, 12, seed=7, **hot)["choices"]
    )
    texts = {server.complete(PROMPT, 12, **hot)["choices"][0]["text"] for _ in range(4)}
    texts |= {server.complete(PROMPT, 12, seed=seed, **hot)["choices"][0]["text"] for seed in (7, 8)}
    assert len(texts) == 6


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_the_colder_the_closer_to_greedy(server: RunningServer, temperature: float) -> None:
    """A temperature that divides to infinity once ended the engine for everybody."""
    assert server.complete(PROMPT, 8, temperature=temperature)["choices"] == server.complete(PROMPT, 8)["choices"]


def test_hundreds_of_degrees_are_refused_and_a_hundred_served(server: RunningServer) -> None:
    server.complete(PROMPT, 8, temperature=100)
    assert server.call("POST", COMPLETIONS, {"prompt": "a", "temperature": 101})[0] == 400


def test_many_streams_get_the_tokens_they_would_get_alone(server: RunningServer) -> None:
    bodies = [
        {
            "prompt": [i, *range(i, 3 * i)],
            "max_tokens": 4 + i,
            "temperature": (i % 2) * 1.2,
            "seed": i,
            "ignore_eos": True,
        }
        for i in range(1, 13)
    ]
    alone = [text_of(server.stream(COMPLETIONS, body)) for body in bodies]
    with held_until(server, len(bodies)), ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: text_of(server.stream(COMPLETIONS, body)), bodies))
    assert together == alone
    assert server.engine.stats().peak_running == 3


def test_models_and_health(server: RunningServer) -> None:
    status, models = server.call("GET", "/v1/models")
    assert status == 200
    assert models["object"] == "list"
    (model,) = models["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("glm_tiny", "model", CONTEXT)
    assert server.call("GET", "/health") == (200, {"status": "ok"})


def metrics(server: RunningServer) -> dict[str, float]:
    status, text = server.call("GET", "/metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_metrics_are_prometheus_and_count_what_was_done(server: RunningServer) -> None:
    server.call("POST", "/flush_cache")
    before = metrics(server)
    assert before["hisparse:peak_running"] == before["hisparse:device_kv_bytes"] == 0
    server.complete(PROMPT, 40)
    grown = {name: value - before[name] for name, value in metrics(server).items()}
    assert grown["hisparse:prefill_tokens_total"] == 30
    assert grown["hisparse:decode_tokens_total"] == grown["hisparse:decode_steps_total"] == 39
    assert grown["hisparse:lookups_total"] == 39 * 2 * 16  # steps, layers, k
    assert 0 < grown["hisparse:misses_total"] < grown["hisparse:lookups_total"]
    assert grown["hisparse:decode_seconds_total"] > 0
    assert grown["hisparse:peak_running"] == 1
    need = server.engine._admission._footprint.request(70)
    assert (grown["hisparse:device_kv_bytes"], grown["hisparse:host_kv_bytes"]) == (need.device, need.host)
    parts = [grown[f"hisparse:device_{part}_bytes"] for part in ("records", "state", "metadata")]
    assert parts == [need.records, need.selection_state, need.metadata]
    record = 384  # bytes of one position, both layers
    moved = {name: grown[f"hisparse:{name}_bytes_total"] for name in ("staging", "write_through", "demand", "load")}
    assert (moved["staging"], moved["write_through"]) == (30 * record, 39 * record)
    assert moved["demand"] == grown["hisparse:misses_total"] * record / 2
    assert grown["hisparse:h2d_bytes_total"] == moved["demand"] + moved["load"]
    assert grown["hisparse:d2h_bytes_total"] == moved["staging"] + moved["write_through"]
    assert grown["hisparse:num_running"] == grown["hisparse:num_waiting"] == 0


def test_the_first_token_is_prefills_also_in_a_step_that_decodes_others(server: RunningServer) -> None:
    """Else decode-only throughput counts tokens that no decode step made."""
    before = metrics(server)
    with held_until(server, 3), ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: server.complete([n] * 30, n), (60, 50, 40)))
    grown = {name: value - before[name] for name, value in metrics(server).items()}
    assert grown["hisparse:decode_tokens_total"] == 59 + 49 + 39
    assert 59 <= grown["hisparse:decode_steps_total"] < 59 + 49 + 39  # they did overlap


def test_a_body_beyond_any_prompt_is_refused_unread(server: RunningServer) -> None:
    status, answer = server.call("POST", COMPLETIONS, {"prompt": "a", "junk": "x" * (2 << 20)})
    assert status == 413 and answer["error"]["type"] == "invalid_request_error"
    server.complete(PROMPT, 2)


def test_server_info(server: RunningServer) -> None:
    status, info = server.call("GET", "/server_info")
    assert status == 200
    assert info["engine"] == "native"
    offload = {"system": "hisparse_sync", "cache_slots": 24, "prefetch": "none", "cold_start": "last"}
    assert info["config"]["offload"] == offload
    assert (info["link"], info["prefetch"]) == ("memory copy", "none")
    assert (info["num_running"], info["num_waiting"]) == (0, 0)
    assert info["stats"]["decode_steps"] > 0
    assert info["kv_bytes_of_longest_request"]["host"] == CONTEXT * 384


def test_flush_refuses_while_a_request_runs_and_resets_the_peaks_after(server: RunningServer) -> None:
    body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0}
    with ThreadPoolExecutor(2) as pool, gated(server.engine) as gate:
        completion = pool.submit(server.call, "POST", COMPLETIONS, body)
        wait_for(lambda: server.engine.num_running == 1, "the request's start")
        flush = pool.submit(server.call, "POST", "/flush_cache")
        wait_for(lambda: server.engine._inbox, "the flush's arrival")
        gate.allow()  # it is answered between two steps
        status, refusal = flush.result()
        assert status == 409
        assert "1 requests are in flight" in refusal["error"]["message"]
        gate.open()
        assert completion.result()[0] == 200
    assert server.engine.stats().peak_running == 1
    assert server.call("POST", "/flush_cache") == (200, {"status": "flushed"})
    stats = server.engine.stats()
    assert (stats.peak_running, stats.device_kv_bytes, stats.host_kv_bytes) == (0, 0, 0)
