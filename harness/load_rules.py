"""Which settings of `load` and `workload` go together; each problem is one line with the key, the fault and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from harness.schema import ArrivalKind, Config, LengthKind, LoadConfig, LoadMode, WorkloadConfig, WorkloadKind


def load_problems(config: Config) -> Iterator[str]:
    """Everything that is inconsistent in `load`, the most telling first."""
    load = config.load
    if not load.concurrencies or any(c < 1 for c in load.concurrencies):
        yield f"load.concurrencies={load.concurrencies} must list values of at least 1"
        return
    if len(set(load.concurrencies)) < len(load.concurrencies):
        yield f"load.concurrencies={load.concurrencies} names a value twice"
    if load.mode is LoadMode.closed:
        yield from _closed_problems(load)
    else:
        yield from _open_problems(load, config.workload)
    if load.processes > min(load.concurrencies):
        yield (
            f"load.processes={load.processes} is above load.concurrencies={min(load.concurrencies)}: "
            "a process needs at least one request in flight"
        )
    if load.max_failed_share > 1 or load.max_token_mismatch > 1:
        yield "load.max_failed_share and load.max_token_mismatch are shares: choose 0 to 1"


def workload_problems(config: Config) -> Iterator[str]:
    """What is inconsistent in `workload`, and between it and the model."""
    work = config.workload
    if work.kind.needs_tokenizer and (config.model.weights == "random" or config.model.weights.startswith("hf:")):
        yield (
            f"workload={work.kind.value} needs a tokenizer, which model={config.model.name} has not; "
            "choose workload=random_ids"
        )
    if work.kind.reads_files:
        yield from _file_problems(work)
    else:
        yield from _drawn_problems(work)
    longest_in, longest_out = work.longest
    if longest_in + longest_out > config.context_len:
        keys = ("max_input_len", "max_output_len") if work.max_input_len else ("input_len", "output_len")
        spread = " with its spread" if work.lengths is LengthKind.uniform else ""
        yield (
            f"workload.{keys[0]}={longest_in} + workload.{keys[1]}={longest_out}{spread} is longer than "
            f"engine.context_len={config.context_len}"
        )


def _closed_problems(load: LoadConfig) -> Iterator[str]:
    for key in ("arrivals", "request_rate", "burstiness", "slowdown"):
        yield from _unused(load, "load", key, "load.mode=closed, whose workers set the pace; it needs load.mode=open")
    if (load.num_requests is None) == (load.requests_per_worker is None):
        yield (
            "set exactly one of load.num_requests (N) and load.requests_per_worker (N / concurrency), the other to null"
        )
    if load.num_requests is not None and load.num_requests < max(load.concurrencies):
        yield (
            f"load.num_requests={load.num_requests} is below load.concurrencies={max(load.concurrencies)}, "
            "which it could never reach"
        )


def _open_problems(load: LoadConfig, work: WorkloadConfig) -> Iterator[str]:
    kinds = ", ".join(kind.value for kind in ArrivalKind)
    if load.arrivals is None:
        rate = " and load.request_rate=R (requests per second; not for trace)" if load.request_rate is None else ""
        yield f"load.mode=open needs load.arrivals (one of {kinds}){rate}"
    if load.requests_per_worker is not None or load.num_requests is None:
        yield "load.mode=open has no workers: set load.num_requests (N) and load.requests_per_worker=null"
    yield from _unused(load, "load", "stagger_s", "load.mode=open, which has no workers to stagger")
    if load.arrivals is None:
        return
    replay = load.arrivals is ArrivalKind.trace
    if replay and not work.kind.is_trace:
        yield f"load.arrivals=trace needs a workload with arrival times, not {work.kind.value}: mooncake, azure"
    if replay and load.request_rate is not None:
        yield f"load.request_rate={load.request_rate:g} is not used by load.arrivals=trace; use load.slowdown"
    if not replay and load.request_rate is None:
        yield f"load.arrivals={load.arrivals.value} needs load.request_rate (requests per second)"
    if not replay:
        yield from _unused(load, "load", "slowdown", f"load.arrivals={load.arrivals.value}; it needs trace")
    if load.arrivals is not ArrivalKind.gamma:
        yield from _unused(load, "load", "burstiness", f"load.arrivals={load.arrivals.value}; it needs gamma")


def _file_problems(work: WorkloadConfig) -> Iterator[str]:
    """Workloads whose requests are a file's."""
    name = work.kind.value
    if len(work.files) != 1:
        yield f"workload={name} reads one file: set workload.files=[FILE], not {work.files}"
    for key in ("lengths", "input_spread", "output_spread", "length_file"):
        yield from _unused(work, "workload", key, f"workload={name}, whose lengths are those of its file")
    if not work.kind.is_trace:
        yield from _unused(work, "workload", "length_scale", f"workload={name}, whose prompts are real text")
    own_output = work.kind is not WorkloadKind.longbench_v2  # questions have no recorded answers to take lengths from
    if not own_output:
        yield from _unused(work, "workload", "max_output_len", f"workload={name}: set workload.output_len")
    for key in ("input_len", "output_len") if own_output else ("input_len",):
        yield from _limit_problems(work, key, f"workload={name}")


def _drawn_problems(work: WorkloadConfig) -> Iterator[str]:
    """Workloads whose lengths are drawn."""
    name = f"workload.lengths={work.lengths.value}"
    limits, spreads = ("max_input_len", "max_output_len"), ("input_spread", "output_spread")
    from_file = work.lengths is LengthKind.empirical
    unused = {
        LengthKind.fixed: (*limits, *spreads, "length_file", "length_scale"),
        LengthKind.uniform: (*limits, "length_file", "length_scale"),
        LengthKind.lognormal: ("length_file", "length_scale"),
        LengthKind.empirical: spreads,
    }[work.lengths]
    for key in unused:
        yield from _unused(work, "workload", key, name)
    if work.lengths is LengthKind.uniform and max(work.input_spread, work.output_spread) >= 1:
        yield f"{name} takes spreads below 1: at 1 a length could be 0"
    if work.lengths is LengthKind.lognormal:
        for mean, limit in (("input_len", "max_input_len"), ("output_len", "max_output_len")):
            top = getattr(work, limit)
            if top is None or top < getattr(work, mean):
                yield f"{name} needs workload.{limit} of at least workload.{mean}={getattr(work, mean)}, not {top}"
    if from_file and not work.length_file:
        yield f"{name} needs workload.length_file=FILE"
    if from_file:
        for key in ("input_len", "output_len"):
            yield from _limit_problems(work, key, name)


def _limit_problems(work: WorkloadConfig, key: str, what: str) -> Iterator[str]:
    """Where a file gives the lengths, the length that a row carries is the limit."""
    limit = getattr(work, f"max_{key}")
    if limit is None:
        yield f"{what} needs workload.max_{key}: longer requests of its file are left out"
    elif getattr(work, key) != limit:
        yield (
            f"workload.{key}={getattr(work, key)}: {what} takes lengths from a file; set it to "
            f"workload.max_{key}={limit}, the longest that is sent"
        )


def _unused(owner: LoadConfig | WorkloadConfig, group: str, key: str, by: str) -> Iterator[str]:
    """A key that is set and that nothing would read."""
    value = getattr(owner, key)
    default = next(f.default for f in fields(owner) if f.name == key)
    if value != default:
        shown = getattr(value, "value", value)
        yield f"{group}.{key}={shown} is not used by {by}"
