"""SGLang's own client, bench_serving, against the native server: it completes, and says what ours says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.loadgen.bench.native import OUTPUT_LEN, cross_check

PEERS = Path(__file__).resolve().parents[2] / "build" / "peers"


@pytest.mark.slow
@pytest.mark.skipif(not PEERS.is_dir(), reason="make bench-loadgen installs SGLang's client")
def test_bench_serving_completes_against_the_native_server_and_agrees_with_ours(tmp_path):
    """`make bench-loadgen` prints how closely; here a busy machine must not fail what is right."""
    found = cross_check(PEERS, tmp_path, rounds=1)
    for name in ("ours", "sglang"):
        assert found["completed"][name] == [found["requests"]], name
        assert found["tokens"][name] == [found["requests"] * OUTPUT_LEN], name
    assert abs(found["off"]["ttft_ms"]) < 0.5
    assert abs(found["off"]["tokens_per_s"]) < 0.5
