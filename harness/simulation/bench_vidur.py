"""The simulator vidur on one workload: run by the interpreter that has the package `vidur`; imports nothing of ours.

PYTHON bench_vidur.py reads {"requests", "prompt", "output", "rate", "seed", "flops", "bandwidth",
"attention", "layer_ms"} as JSON from stdin and writes seconds of wall clock and of virtual time to stdout.

vidur trains its step times on profiles that it downloads from huggingface.co. Here it gets them from the same data
sheet as ours instead, in the place of that download: Llama-3-8B on one H100, milliseconds of each operation of a layer
for a number of tokens, weights read once a step. What is compared is the simulators, not their calibrations.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

LAYERS, HIDDEN, MLP, KV, HEADS, HEAD = 32, 4096, 14336, 1024, 32, 128  # Llama-3-8B
VOCABULARY = 128256
MOST_TOKENS, MOST_RUNNING, CHUNK, GRAIN = 4096, 128, 2048, 256


def predictions(spec: dict[str, float]) -> dict[str, dict[tuple[int, ...], float]]:
    """Milliseconds of one layer's operations, as vidur names them; (tokens,) or two numbers -> ms."""
    flops, bandwidth = spec["flops"] / 1e3, spec["bandwidth"] / 1e3  # a millisecond

    def matrix(parameters: int) -> dict[tuple[int, ...], float]:
        read = 2 * parameters / bandwidth
        # a chunk of a prompt runs at the share of the peak that prefill reaches, decode's few tokens at that of reading
        return {(n,): max(read, 2 * parameters * n / (flops * spec["prefill"])) for n in range(1, MOST_TOKENS + 1)}

    def constant(ms: float) -> dict[tuple[int, ...], float]:
        return {(n,): ms for n in range(1, MOST_TOKENS + 1)}

    pair, pair_bytes, rate = 4 * HEADS * HEAD, 2 * 2 * KV, flops * spec["attention"]
    contexts = range(0, MOST_TOKENS + 1, GRAIN)
    chunks = range(32, CHUNK + 1, 32)
    names = ("mlp_act", "attn_rope", "attn_kv_cache_save", "input_layernorm", "post_attention_layernorm")
    return {
        "attn_pre_proj": matrix(HIDDEN * (HIDDEN + 2 * KV)),
        "attn_post_proj": matrix(HIDDEN * HIDDEN),
        "mlp_up_proj": matrix(2 * HIDDEN * MLP),
        "mlp_down_proj": matrix(HIDDEN * MLP),
        "add": constant(spec["layer_ms"]),
        **{name: constant(0.0) for name in names},
        "attn_decode": {
            (b, c): max(b * c * pair / rate, b * c * pair_bytes / bandwidth)
            for b in range(1, MOST_RUNNING + 1)
            for c in contexts
        },
        "attn_prefill": {(c, n): n * (c + n / 2) * pair / (flops * spec["prefill"]) for c in contexts for n in chunks},
    }


def run(spec: dict[str, float], folder: str) -> dict[str, float]:
    """Wall-clock seconds of the simulation alone, after everything is set up, and the virtual seconds it came to."""
    from vidur import config  # type: ignore[import-not-found, unused-ignore]
    from vidur.execution_time_predictor import (  # type: ignore[import-not-found, unused-ignore]
        sklearn_execution_time_predictor as predictor,
    )
    from vidur.simulator import Simulator  # type: ignore[import-not-found, unused-ignore]
    from vidur.utils.random import set_seeds  # type: ignore[import-not-found, unused-ignore]

    predictor.SklearnExecutionTimePredictor._load_predictions_from_hf = lambda self: predictions(spec)
    count = int(spec["requests"])
    lengths: Any = config.config.FixedRequestLengthGeneratorConfig(
        prefill_tokens=int(spec["prompt"]), decode_tokens=int(spec["output"])
    )
    simulation = config.SimulationConfig(
        log_level="error",
        cluster_config=config.config.ClusterConfig(
            replica_config=config.ReplicaConfig(
                num_pipeline_stages=1, tensor_parallel_size=1, gpu_memory_utilization=0.85
            ),
            replica_scheduler_config=config.config.SarathiSchedulerConfig(
                chunk_size=CHUNK, batch_size_cap=MOST_RUNNING
            ),
        ),
        request_generator_config=config.config.SyntheticRequestGeneratorConfig(
            num_requests=count,
            length_generator_config=lengths,
            interval_generator_config=config.config.PoissonRequestIntervalGeneratorConfig(qps=spec["rate"]),
        ),
        execution_time_predictor_config=config.config.RandomForrestExecutionTimePredictorConfig(
            prediction_max_tokens_per_request=MOST_TOKENS,
            prediction_max_batch_size=MOST_RUNNING,
            prediction_max_prefill_chunk_size=CHUNK,
            attention_decode_batching_overhead_fraction=0.0,
            cache_dir=f"{folder}/cache",
        ),
        metrics_config=config.MetricsConfig(
            write_metrics=False, store_plots=False, enable_chrome_trace=False, output_dir=folder
        ),
    )
    set_seeds(int(spec["seed"]))
    simulator = Simulator(simulation)
    begin = time.perf_counter()
    simulator.run()
    return {"wall_s": time.perf_counter() - begin, "virtual_s": float(simulator._time), "requests": count}


def main() -> None:
    spec = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(spec, folder)))


if __name__ == "__main__":
    main()
