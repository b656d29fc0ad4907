"""Traces: lengths, arrival times and shared prefixes as the file has them; a bad line is named."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from harness.schema import WorkloadConfig, WorkloadKind
from workloads import make_source
from workloads.conversations import Conversations
from workloads.longbench import LongBench
from workloads.request_traces import read_trace

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
MOONCAKE, AZURE = WorkloadKind.mooncake, WorkloadKind.azure


def source(kind, path, *, limit=10_000, vocab_size=32_000, **overrides):
    limits = {"input_len": limit, "output_len": limit, "max_input_len": limit, "max_output_len": limit}
    workload = WorkloadConfig(kind=kind, name="w", files=[str(path)], **(limits | overrides))
    return make_source(workload, vocab_size=vocab_size, tokenizer_file=None)


def draw(src, count, concurrency=4, repeat=0, phase="measured"):
    return src.prompts(count, concurrency=concurrency, repeat=repeat, phase=phase)


def mooncake(tmp_path, *rows):
    path = tmp_path / "m.jsonl"
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


SHARED = ((500, 1200, 7, [1, 2, 3]), (0, 1030, 5, [1, 2, 9]), (750, 600, 6, [1, 4]), (800, 1200, 2, [1, 2, 3]))


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize(("scale", "block"), [(1.0, 512), (0.125, 64), (0.01, 5)])
def test_equal_hash_ids_are_shared_prefixes_and_no_more(tmp_path, scale, block):
    first, second, third, fourth = draw(source(MOONCAKE, mooncake(tmp_path, *SHARED), length_scale=scale), 4)
    assert [p.arrival_s for p in (first, second, third, fourth)] == [0, 0.5, 0.75, 0.8]  # by arrival
    assert common(first.token_ids, second.token_ids) == 2 * block
    assert common(second.token_ids, third.token_ids) == block
    assert fourth.token_ids == second.token_ids  # the trace says so
    if scale == 1:
        assert [p.input_len for p in (first, second, third)] == [1030, 1200, 600]
        assert [p.output_len for p in (first, second, third, fourth)] == [5, 7, 6, 2]
    for prompt, row in zip((first, second, third), (SHARED[1], SHARED[0], SHARED[2]), strict=True):
        assert len(prompt.token_ids) == prompt.input_len
        assert prompt.input_len == pytest.approx(row[1] * block / 512, abs=1)


def test_points_share_no_block(tmp_path):
    src = source(MOONCAKE, mooncake(tmp_path, *SHARED))
    points = [draw(src, 1, c, r, phase)[0] for c in (1, 2) for r in (0, 1) for phase in ("measured", "warmup")]
    assert len({tuple(p.token_ids[:8]) for p in points}) == len(points)
    assert draw(src, 2) == draw(src, 4)[:2]


def test_requests_beyond_the_limits_are_left_out(tmp_path):
    src = source(MOONCAKE, mooncake(tmp_path, *SHARED), limit=1100)
    assert [p.input_len for p in draw(src, 2)] == [1030, 600]
    with pytest.raises(ValueError, match=r"holds 2 requests within 1100 and 1100 tokens \(2 are longer\), not 3"):
        draw(src, 3)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (MOONCAKE, '{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1, 2]}', "line 1: 2 hash_ids"),
        (MOONCAKE, '{"timestamp": "now"}', "line 1: timestamp is 'now'"),
        (MOONCAKE, '{"timestamp": 1, "input_length": 3}', "line 1: output_length is None"),
        (MOONCAKE, '{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": ["a"]}', "a hash id is 'a'"),
        (MOONCAKE, '{"timestamp": 0, "input_length": 3, "output_length": 1}', "hash_ids is None"),
        (MOONCAKE, "\n\n{", "line 3: not JSON"),
        (MOONCAKE, "", "holds no request"),
        (AZURE, "TIMESTAMP,ContextTokens\n", "line 1: no column GeneratedTokens"),
        (
            AZURE,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4,-1\n",
            "line 2: GeneratedTokens is '-1'",
        ),
        (AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,4,1\n", "line 2: TIMESTAMP is 'noon'"),
        (AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4\n", "line 2: GeneratedTokens is None"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, kind, text, message):
    path = tmp_path / "trace.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        source(kind, path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_trace_is_named(tmp_path):
    for kind in (MOONCAKE, AZURE):
        with pytest.raises(ValueError, match="none: No such file"):
            source(kind, tmp_path / "none")


def test_azure_times_and_zones(tmp_path):
    path = tmp_path / "a.csv"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    path.write_text(header + "2023-11-16 18:17:04.0319600,30,8\r\n2023-11-16 18:17:03.9799600,48,10\r\n")
    found = read_trace(path, AZURE)
    assert [(r.input_len, r.output_len) for r in found] == [(48, 10), (30, 8)]
    assert found[1].arrival_s == pytest.approx(0.052, abs=1e-6)
    path.write_text(header + "2024-05-10 00:00:00.009930+00:00,30,8\r\n2024-05-10 00:00:01.5+00:00,4,1\r\n")
    assert read_trace(path, AZURE)[1].arrival_s == pytest.approx(1.49007, abs=1e-6)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real traces of {DATA}")
def test_the_real_mooncake_trace():
    path = DATA / "mooncake_synthetic_trace.jsonl"
    raw = [json.loads(line) for line in path.open()]
    src = source(MOONCAKE, path, limit=131_072, length_scale=1 / 32, vocab_size=512)
    prompts = draw(src, 300)
    for prompt, row in zip(prompts, raw, strict=False):
        assert prompt.arrival_s == row["timestamp"] / 1e3
        assert prompt.input_len == pytest.approx(row["input_length"] / 32, abs=1)
        assert prompt.output_len == max(1, round(row["output_length"] / 32))
    for (a, p), (b, q) in zip(zip(raw, prompts, strict=False), zip(raw[1:], prompts[1:], strict=False), strict=False):
        blocks = common(a["hash_ids"], b["hash_ids"])
        least = min(16 * blocks, p.input_len, q.input_len)
        assert least <= common(p.token_ids, q.token_ids) <= least + 8  # 512 ids: a chance hit now and then


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real traces of {DATA}")
def test_the_real_azure_trace():
    path = DATA / "AzureLLMInferenceTrace_code.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    prompts = draw(source(AZURE, path), 500)
    assert [p.input_len for p in prompts] == [int(r["ContextTokens"]) for r in rows[:500]]
    assert [p.output_len for p in prompts] == [int(r["GeneratedTokens"]) for r in rows[:500]]
    minutes, seconds = (float(rows[499]["TIMESTAMP"][i:j]) for i, j in ((14, 16), (17, 27)))
    assert prompts[499].arrival_s == pytest.approx((minutes - 17) * 60 + seconds - 3.97996, abs=1e-5)


@pytest.mark.parametrize("kind", [AZURE, MOONCAKE, WorkloadKind.sharegpt, WorkloadKind.longbench_v2])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x81" * 50, b"", b"[]", b"{}", b"\0\0\n", b"[" * 100_000, b"[" + b"1" * 5000]
)
def test_a_file_of_another_kind_is_named(tmp_path, kind, content):
    path = tmp_path / "given"
    path.write_bytes(content)
    limits = {"input_len": 9, "output_len": 9, "max_input_len": 9, "max_output_len": 9}
    workload = WorkloadConfig(kind=kind, name="w", files=[str(path)], **limits)
    reader = {
        WorkloadKind.sharegpt: partial(Conversations, workload, encoder=None),
        WorkloadKind.longbench_v2: partial(LongBench, workload, encoder=None),
    }.get(kind, partial(make_source, workload, vocab_size=100, tokenizer_file=None))
    with pytest.raises(ValueError, match="given") as caught:
        reader()
    assert "\n" not in str(caught.value)


def test_numbers_beyond_any_request_are_refused(tmp_path):
    for row in ((10**400, 5, 5, [1]), (0, 10**30, 5, [1]), (0, 5, 10**30, [1])):
        with pytest.raises(ValueError, match="m.jsonl line 1"):
            read_trace(mooncake(tmp_path, row), MOONCAKE)
