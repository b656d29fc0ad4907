"""What SGLang's log says, on lines as release 0.5.23 writes them."""

from __future__ import annotations

import pytest

from harness.config import load_cells
from harness.instances.sglang_log import is_fatal, is_own_fault, peaks, reason
from harness.instances.sglang_metrics import Scrape, server_stats

USAGE = """usage: sglang serve [-h] --model-path MODEL_PATH
sglang serve: error: unrecognized arguments: --foo
"""
MEMORY = """[2026-11-30 06:56:14] Loading weights
[2026-11-30 06:56:14 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 1, in run
    self.init_memory()
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.

[2026-11-30 06:56:14] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "engine.py", line 2, in wait
EOFError
"""


def hisparse(second: int, rank: int, running: int, gpu: int, cpu: int) -> str:
    held = f"#gpu token: {gpu}, gpu token usage: 0.10, #cpu token: {cpu}, cpu token usage: 0.05, #queue-req: 0"
    return f"[2026-11-30 06:56:{second} DP{rank} TP{rank}] Decode batch, #running-req: {running}, {held}\n"


DECODE = (
    "[2026-11-30 06:56:14 DP0 TP0] Prefill batch, #new-seq: 3, #new-token: 96, #running-req: 1, #queue-req: 0\n"
    + hisparse(14, 0, 4, 900, 7000)
    + hisparse(15, 1, 2, 500, 3000)
    + hisparse(16, 0, 3, 950, 6000)
)
PLAIN = "[2026-11-30 06:56:14] Decode batch, #running-req: 1, #token: 10, token usage: 0.00, #queue-req: 0"


def test_the_cause_is_in_sglangs_words() -> None:
    assert reason(USAGE) == "unrecognized arguments: --foo"
    assert reason(MEMORY) == "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    assert reason("[2026-11-30 06:56:14] ValueError: said in passing, no traceback") is None
    assert reason("Traceback (most recent call last):\n  File 'x'\nAssertionError\n") == "AssertionError"
    assert reason("") is None


@pytest.mark.parametrize("log", [USAGE, MEMORY, "torch.OutOfMemoryError: CUDA out of memory", "Address already in use"])
def test_a_fatal_line_is_known(log: str) -> None:
    assert is_fatal(log)


def test_ordinary_lines_are_not_fatal() -> None:
    assert not is_fatal(DECODE + PLAIN + "[2026-11-30 06:56:14] server_args=ServerArgs(log_level_http=None)")


PEER = """[2026-11-30 06:56:14 TP0] Scheduler hit an exception: Traceback (most recent call last):
RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:5000
"""
OUT_OF_HOST_MEMORY = """Traceback (most recent call last):
RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause
"""
SURVIVED = "Traceback (most recent call last):\nImportError: no such backend\n"


@pytest.mark.parametrize(
    ("log", "own"),
    [(MEMORY, True), (USAGE, True), (PEER, False), (OUT_OF_HOST_MEMORY, False), (SURVIVED, False)]
    + [
        (
            SURVIVED
            + "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Received sigquit from a child process",
            False,
        )
    ],
)
def test_what_would_come_again_is_told_from_what_may_pass(log: str, own: bool) -> None:
    assert is_own_fault(log, str(reason(log))) == own


def test_peaks_are_summed_over_ranks() -> None:
    seen = peaks(DECODE)
    assert (seen.running, seen.device_tokens, seen.host_tokens) == (4 + 2, 950 + 500, 7000 + 3000)
    plain = peaks(PLAIN)
    assert (plain.running, plain.device_tokens, plain.host_tokens) == (1, 10, None)
    assert peaks("nothing of the kind").running is None


def test_counters_of_ranks_are_added_and_lockstep_seconds_are_not() -> None:
    lines = []
    for rank in range(2):
        own = f'dp_rank="{rank}",tp_rank="{rank}",pp_rank="0"'
        lines += [
            f'sglang:realtime_tokens_total{{{own},mode="decode"}} {100 + rank}',
            f'sglang:realtime_tokens_total{{{own},mode="prefill_compute"}} 7',
            f'sglang:forward_execution_seconds_total{{{own},category="decode"}} {2.0 + rank}',
            f'sglang:cuda_graph_passes_total{{{own},mode="decode_none"}} 1',
            f'sglang:cuda_graph_passes_total{{{own},mode="decode_cuda_graph"}} {40 + rank}',
        ]
    lines.append('sglang:realtime_tokens_total{dp_rank="0",tp_rank="0",pp_rank="1",mode="decode"} 100')
    config = load_cells(["experiment=fig8", "engine=sglang", "offload=hisparse_sync", "tracker=none"])[0]
    stats = server_stats(Scrape("\n".join(lines) + "\n"), DECODE, config, "sglang 0.5.23")
    assert (stats.decode_tokens, stats.prefill_tokens, stats.decode_seconds) == (201, 14, 3.0)
    assert stats.decode_steps == 42
    assert stats.retractions == 0 and stats.prefill_seconds is None  # not exported
    assert stats.device_records_bytes == 1450 * 78 * 1152  # GLM-5.2: 78 layers, 1152 bytes each
    assert stats.host_kv_bytes == 10000 * 78 * 1152
    assert stats.device_state_bytes == pytest.approx(10000 * 21 * 132, rel=0.05)  # 21 layers run the indexer
    assert stats.since(stats).version == "sglang 0.5.23" and stats.since(stats).decode_tokens == 0
