"""The bounds of every number of the config: part of `harness.validate`."""

from __future__ import annotations

import math
from operator import attrgetter

from harness.schema import Config

AT_LEAST_ONE = (  # or null
    "model.num_layers",
    "model.hidden_size",
    "model.num_heads",
    "model.intermediate_size",
    "model.vocab_size",
    "model.max_positions",
    "model.num_kv_heads",
    "model.head_dim",
    "model.q_lora_rank",
    "model.kv_lora_rank",
    "model.qk_nope_head_dim",
    "model.qk_rope_head_dim",
    "model.v_head_dim",
    "model.index_num_heads",
    "model.index_head_dim",
    "model.index_top_k",
    "model.num_experts",
    "model.experts_per_token",
    "model.expert_intermediate_size",
    "model.expert_groups",
    "model.groups_per_token",
    "model.record_tokens",
    "model.window",
    "model.out_groups",
    "model.out_lora_rank",
    "platform.num_devices",
    "platform.multiprocessors",
    "selector.page_size",
    "engine.data_parallel",
    "engine.tensor_parallel",
    "engine.pipeline_parallel",
    "engine.page_size",
    "engine.max_running_requests",
    "engine.prefill_chunk_tokens",
    "workload.input_len",
    "workload.output_len",
    "replay.tokens",
    "workload.max_input_len",
    "workload.max_output_len",
    "load.repeats",
    "load.num_requests",
    "load.requests_per_worker",
    "load.processes",
)
AT_LEAST_ZERO = (
    "model.seed",
    "model.embed_common",
    "model.num_shared_experts",
    "model.num_dense_layers",
    "model.index_rope_head_dim",
    "selector.sink",
    "engine.port",
    "workload.temperature",
    "workload.seed",
    "platform.link.latency_us",
    "platform.serving.request_s.value",
    "platform.serving.prompt_token_s.value",
    "platform.serving.entry_s.value",
    "platform.serving.step_s.value",
    "platform.serving.token_s.value",
    "platform.serving.wake_s.value",
    "workload.locality.static_weight",
    "workload.locality.slow_weight",
    "workload.locality.slow_rho",
    "workload.locality.fast_weight",
    "workload.locality.fast_rho",
    "workload.locality.noise_weight",
    "workload.input_spread",
    "workload.output_spread",
    "load.warmup_requests",
    "load.stagger_s",
    "load.min_completed",
    "load.max_failed_share",
    "load.max_token_mismatch",
    "load.late_after_ms",
    "cluster.retries",
    "cluster.retry_wait_s",
)
ABOVE_ZERO = (
    "model.rope_theta",
    "model.rms_norm_eps",
    "model.routed_scale",
    "model.compress_rope_theta",
    "model.weight_bytes",
    "model.expert_weight_bytes",
    "platform.num_cpus",
    "platform.flops",
    "platform.flops_fp8",
    "platform.costs.layer_s.value",
    "platform.costs.request_s.value",
    "platform.costs.attention_efficiency.value",
    "platform.costs.memory_efficiency.value",
    "platform.costs.prefill_efficiency.value",
    "platform.costs.worker_rate.value",
    "platform.costs.link_rate.value",
    "platform.costs.join_s.value",
    "engine.memory_fraction",
    "engine.host_fraction",
    "engine.host_to_device_ratio",
    "engine.start_timeout_s",
    "engine.schedule_conservativeness",
    "load.connect_timeout_s",
    "load.first_token_timeout_s",
    "load.idle_timeout_s",
    "load.total_timeout_s",
    "load.max_lag_p99_ms",
    "load.max_lag_share",
    "load.max_cpu_share",
    "load.max_seconds",
    "load.request_rate",
    "load.burstiness",
    "load.slowdown",
    "load.slo_ttft_ms",
    "load.slo_tpot_ms",
    "load.slo_e2el_ms",
    "workload.length_scale",
    "cluster.loadgen_cpus",
    "cluster.ready_timeout_s",
    "cluster.cell_timeout_s",
    "cluster.point_timeout_s",
    "cluster.budget_s",
)


def number_problem(config: Config) -> str | None:
    """The first number that is out of its bounds, in words."""
    for keys, valid, rule in (
        (AT_LEAST_ONE, lambda value: value >= 1, "must be at least 1"),
        (AT_LEAST_ZERO, lambda value: value >= 0, "must not be negative"),
        (ABOVE_ZERO, lambda value: value > 0, "must be above 0"),
    ):
        for key in keys:
            value = attrgetter(key)(config)
            if value is not None and not (math.isfinite(value) and valid(value)):
                return f"{key}={value} {rule if math.isfinite(value) else 'must be a finite number'}"
    for key, seed in (("model.seed", config.model.seed), ("workload.seed", config.workload.seed)):
        if seed >= 2**63:
            return f"{key}={seed} must be below 2**63"
    if config.model.embed_common > 1:
        return f"model.embed_common={config.model.embed_common} is a share: choose 0 to 1"
    for key, rho in (("slow", config.workload.locality.slow_rho), ("fast", config.workload.locality.fast_rho)):
        if rho >= 1:
            return f"workload.locality.{key}_rho={rho} is a correlation: choose 0 to below 1"
    if config.engine.port > 65535:
        return f"engine.port={config.engine.port} must be at most 65535; 0 takes any free port"
    return None
