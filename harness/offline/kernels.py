"""One call of resolve, taken apart: the measurement of the paper's figure 7 (section 4.4) on this machine's device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.engine.footprint import Footprint
from harness.offline.base import Measures, OfflineError
from harness.schema import Config, Device

if TYPE_CHECKING:
    from hisparse_kernels import bench


def measure_kernels(config: Config, batch: int) -> Measures:
    """Medians over `workload.output_len` steps of a batch whose selections miss at `workload.miss_rate`.

    Raises OfflineError where no compiled kernels are to be had: there is nothing to time then.
    """
    import hisparse_kernels
    import torch
    from hisparse_kernels import bench, bench_cuda

    assert config.selector.top_k is not None
    assert config.offload.cache_slots is not None
    assert config.workload.miss_rate is not None
    setting = bench.Setting(
        sweep=config.name,
        model=config.model.name,
        top_k=config.selector.top_k,
        ratio=config.offload.cache_slots / config.selector.top_k,
        batch=batch,
        misses=config.workload.miss_rate,
        record=Footprint(config).record_bytes,
        context=config.workload.input_len,
        threads=max(1, int(config.platform.num_cpus)),
    )
    if config.platform.device is Device.cuda:
        if not torch.cuda.is_available():
            raise OfflineError("platform.device=cuda needs a GPU and a torch with CUDA: choose platform=cpu")
        return _on_gpu(bench_cuda.measure(setting, config.workload.output_len), setting)
    if hisparse_kernels.backend() == "reference":
        raise OfflineError("no compiled kernels here, so there is nothing to time: install g++ and ninja")
    return _on_cpu(bench.measure(setting, config.workload.output_len, with_reference=True), setting)


def _on_cpu(row: dict[str, float], setting: bench.Setting) -> Measures:
    return {
        "miss_rate": setting.num_misses / setting.top_k,
        "resolve_us": row["resolve"],
        "probe_scan_us": row["probe"] + row["order"],
        "io_us": row["fetch"],
        "residual_us": row["stage"] + row["publish"],
        "replay_us": row["replay"],
        "floor_us": row["floor"],
        "reference_us": row["reference"],
    }


def _on_gpu(row: dict[str, float], setting: bench.Setting) -> Measures:
    """A GPU's phases run inside one kernel: its metadata phases are timed together, as a call without copies."""
    return {
        "miss_rate": setting.num_misses / setting.top_k,
        "resolve_us": row["resolve"],
        "probe_scan_us": row["match"],
        "io_us": max(0.0, row["resolve"] - row["match"]),
        "residual_us": None,
        "replay_us": row["replay"],
        "floor_us": row["dma"],
        "reference_us": None,
    }
