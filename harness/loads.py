"""From a point of the grid to what is asked of the load generator, and from its answer back to the point's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.experiment import Cell, Point, server_measures
from harness.loadgen.point import PointLoad, PointResult
from harness.loadgen.schedule import due_times
from harness.records import RequestRecord, ResultRow, ServerStats, Status
from harness.schema import Config, EngineKind, LoadMode
from harness.weights import weights_folder
from workloads import Prompt, Source, make_source, point_rng

WARMUP_TOKENS = 8  # a warm-up request computes its whole prompt but generates little


def prompt_source(config: Config) -> Source:
    """The source of a cell's prompts. Raises ValueError where its files are missing or malformed."""
    folder = weights_folder(config.model.weights)
    tokenizer = folder / "tokenizer.json" if folder else None
    return make_source(config.workload, vocab_size=config.model.vocab_size, tokenizer_file=tokenizer)


def point_loads(config: Config, point: Point, source: Source, url: str) -> tuple[PointLoad, PointLoad | None]:
    """The measured requests, and the warm-up ones before them (None without).

    Raises ValueError where the source has too few prompts.
    """
    where: dict[str, Any] = {"concurrency": point.concurrency, "repeat": point.repeat}
    prompts = source.prompts(point.num_requests, phase="measured", **where)
    due_s = _due(config, point, prompts)
    measured = PointLoad(
        base_url=url,
        model=config.model.name,
        prompts=prompts if due_s is None else prompts[: len(due_s)],
        due_s=due_s,
        concurrency=point.concurrency,
        load=config.load,
        temperature=config.workload.temperature,
        ignore_eos=not config.workload.stop_on_eos,
        devices=config.devices,
        endpoint="generate" if config.engine.kind is EngineKind.sglang else "completions",
    )
    count = config.load.warmup_requests
    if not count:
        return measured, None
    prompts = source.prompts(count, phase="warmup", **where)
    short = [replace(p, output_len=min(p.output_len, WARMUP_TOKENS)) for p in prompts]
    return measured, replace(measured, prompts=short, due_s=None, concurrency=min(count, point.concurrency))


def point_row(cell: Cell, point: Point, result: PointResult, share: ServerStats) -> ResultRow:
    """The row of a point; `share`: what the server's counters grew by while it ran."""
    status, reason = result.status, result.reason
    other = counts_disagree(result.requests, share, cell.config.load.max_token_mismatch)
    if other and status in (Status.OK, Status.INVALID):
        status, reason = Status.INVALID, "; ".join(filter(None, (reason, other)))
    return cell.row(
        point,
        status,
        reason,
        count_source=result.count_source,
        server_version=share.version,
        measures={**result.measures, **server_measures(share)},
    )


def counts_disagree(requests: Sequence[RequestRecord], share: ServerStats, allowed: float) -> str | None:
    """How the server's own counter of generated tokens contradicts what came, None where it does not.

    Servers count a request's first token with its prefill or with its decode steps: both are right. Where a
    request failed nobody knows how much of it the server made, and nothing is compared.
    """
    said = share.decode_tokens
    if said is None or not requests or any(request.error for request in requests):
        return None
    came = sum(sum(request.chunk_tokens) for request in requests)
    least, slack = came - len(requests), allowed * came
    if least - slack <= said <= came + slack:
        return None
    return f"the server's counter says {said} generated tokens, {came} came (load.max_token_mismatch={allowed:g})"


def _due(config: Config, point: Point, prompts: Sequence[Prompt]) -> list[float] | None:
    """Of the open loop; every system of an experiment gets the same arrivals."""
    if config.load.mode is LoadMode.closed:
        return None
    rng = point_rng("arrivals", config.workload.seed, point.concurrency, point.repeat)
    arrivals = [prompt.arrival_s for prompt in prompts if prompt.arrival_s is not None]
    return due_times(config.load, len(prompts), rng, arrivals or None)
