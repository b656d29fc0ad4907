"""Small cells for the engine's tests, and a driver that runs several executors over the same plans."""

from __future__ import annotations

import random
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import torch
import yaml
from torch import Tensor

from harness.config import load_cells
from harness.engine.executor import Executor, Generation
from harness.engine.scheduler import Chunk, Plan
from harness.schema import Config, DType, OffloadSystem
from harness.validate import complete

SYSTEMS = ("full_kv", "fetch_all", "hisparse_sync")
ROOMY = [
    "engine.device_kv_budget=8MiB",
    "engine.host_kv_budget=8MiB",
    "workload.input_len=8",
    "workload.output_len=8",
]
GLM = ["experiment=quickstart", "tracker=none", "load.concurrencies=[1]", *ROOMY]
GLM += ["model.num_layers=3", "model.hidden_size=48", "model.intermediate_size=96", "model.num_heads=2"]
GLM += ["model.q_lora_rank=32", "model.kv_lora_rank=32", "model.qk_nope_head_dim=16", "model.qk_rope_head_dim=16"]
GLM += ["model.v_head_dim=16", "engine.context_len=256"]
GQA = [*GLM[:3], "selector=quest", "model=smollm2_135m", "model.weights=random", "workload=random_ids", *ROOMY]
GQA += ["model.num_layers=3", "model.hidden_size=96", "model.num_heads=6", "model.num_kv_heads=2"]
GQA += ["model.head_dim=16", "model.intermediate_size=128", "model.vocab_size=300", "engine.context_len=256"]
CSA = [*GLM[:3], "model=dsv4_tiny", "selector=nsa", *ROOMY, "model.hidden_size=48", "model.num_heads=2"]
CSA += ["model.head_dim=16", "model.q_lora_rank=32", "model.qk_rope_head_dim=8", "model.index_head_dim=16"]
CSA += ["model.window=8", "model.record_tokens=2", "model.compress_ratios=[2,0,8,2,2]", "model.out_lora_rank=16"]
CSA += ["model.expert_intermediate_size=32", "model.vocab_size=300", "engine.context_len=256"]
EXPERTS = ["model.num_experts=6", "model.experts_per_token=2", "model.expert_intermediate_size=32"]

MODELS = {  # every kind of selection the engine has, on a model small enough for hundreds of steps
    "dsa": [*GLM, "selector=dsa", "selector.top_k=16"],
    "quest": [*GQA, "selector.page_size=4", "selector.top_k=16", "model.embed_common=0.5"],
    "shared_moe": [*GLM, "model.index_anchors=[0,1]", "selector.top_k=16", *EXPERTS, "model.num_dense_layers=1"],
    "nsa": [*CSA, "selector.top_k=16"],
    "exact_mla": [*GLM, "selector=exact_topk", "selector.top_k=16"],
    "exact_gqa": [*GQA, *EXPERTS, "selector=exact_topk", "selector.top_k=16", "model.qk_norm=true"],
    "window": [*GQA, "selector=window", "selector.top_k=16"],
    "dense_mla": [*GLM, "selector=dense"],
    "dense_gqa": [*GQA, "selector=dense", "selector.top_k=null", "selector.page_size=16"],
}


def cell(overrides: Iterable[str]) -> Config:
    """The one cell that the overrides name."""
    (config,) = load_cells(list(overrides))
    return config


@cache
def _base(model: str) -> Config:
    return cell([*MODELS[model], "offload=hisparse_sync"])  # half a second: Hydra


def cell_of(model: str, system: str, *more: str) -> Config:
    """A cell of MODELS under an offload system, with B = 24 slots where that is the system's to choose.

    more: further `group.key=value`; completed and checked as a composed one is.
    """
    config = deepcopy(_base(model))
    config.offload.system, config.offload.prefetch = OffloadSystem[system], None
    config.offload.cache_slots = None if model.startswith("dense") else 24
    for override in more:
        key, value = override.split("=")
        group, name = key.split(".")
        assert hasattr(getattr(config, group), name), key
        before = getattr(getattr(config, group), name)
        parsed = type(before)(value) if isinstance(before, Enum) else yaml.safe_load(value)
        parsed = DType(value) if name == "index_dtype" else parsed
        setattr(getattr(config, group), name, parsed)
    return complete(config)


@dataclass(kw_only=True, slots=True)
class Request:
    """What the driver asks for: from step `arrives` on, as soon as a row is free."""

    prompt: list[int]
    new_tokens: int
    arrives: int = 0
    prefilled: int = 0
    generated: int = 0


@dataclass(slots=True)
class Driver:
    """Writes plans for requests that come and go, cutting prompts at random places. Knows no executor."""

    requests: list[Request]
    max_rows: int
    rng: random.Random
    largest_chunk: int = 29
    step: int = 0
    running: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return all(r.generated >= r.new_tokens for r in self.requests)

    def plan(self) -> Plan:
        admitted, chunks, decode = [], [], []
        for i, request in enumerate(self.requests):
            fresh = request.arrives <= self.step and not request.prefilled and i not in self.running
            if fresh and len(self.running) < self.max_rows:
                self.running.append(i)
                admitted.append(i)
        for i in self.running:
            request = self.requests[i]
            left = len(request.prompt) - request.prefilled
            if left:
                length = min(left, self.rng.randint(1, self.largest_chunk))
                chunks.append(Chunk(i, request.prefilled, length, length == left))
            else:
                decode.append(i)
        self.rng.shuffle(decode)
        return Plan(tuple(admitted), tuple(chunks), tuple(decode))

    def advance(self, plan: Plan) -> list[int]:
        """Account for a plan that ran; returns the requests that ended."""
        self.step += 1
        for chunk in plan.prefill:
            self.requests[chunk.request_id].prefilled += chunk.length
            self.requests[chunk.request_id].generated += chunk.is_last
        for i in plan.decode:
            self.requests[i].generated += 1
        ended = [i for i in self.running if self.requests[i].generated >= self.requests[i].new_tokens]
        self.running = [i for i in self.running if i not in ended]
        return ended


class Probe:
    """An executor whose logits, prefill's too, are kept from step to step."""

    def __init__(self, config: Config):
        self.executor = Executor(config, None)
        self.kv = self.executor.kv
        self.prefill_logits: list[Tensor] = []
        prefill = self.executor.model.prefill

        def kept(*args: object) -> Tensor:
            logits = prefill(*args)  # type: ignore[arg-type]
            self.prefill_logits.append(logits)
            return logits

        self.executor.model.prefill = kept  # type: ignore[method-assign]

    def add(self, request_id: int, request: Request) -> None:
        tokens = list(request.prompt)
        self.executor.add(
            request_id, Generation(tokens=tokens, prompt_len=len(tokens), max_new_tokens=request.new_tokens)
        )

    def run(self, plan: Plan) -> Tensor:
        """Logits [chunks + decoding requests, vocab] of the step."""
        self.prefill_logits.clear()
        self.executor.run(plan)
        rows = list(self.prefill_logits)
        if plan.decode:
            assert self.executor.last_logits is not None
            rows += list(self.executor.last_logits)
        return torch.stack(rows)


def first_difference(step: int, plan: Plan, expected: Tensor, got: Tensor, name: str) -> str | None:
    """None for equal bits, else where the first difference is. Equal NaNs are a difference: logits are numbers."""
    if torch.equal(expected, got):
        return None
    row, index = (int(x) for x in (expected != got).nonzero()[0])
    ids = [f"prefill of request {c.request_id} [{c.start}:{c.start + c.length}]" for c in plan.prefill]
    ids += [f"decode of request {i}" for i in plan.decode]
    wrong = int((expected != got).sum())
    return (
        f"{name} differs at step {step}, row {row} ({ids[row]}), vocabulary index {index}: "
        f"expected {float(expected[row, index])!r}, got {float(got[row, index])!r}; {wrong} values differ in this step"
    )


def run_lockstep(probes: dict[str, Probe], driver: Driver) -> None:
    """Run every probe over the driver's plans; AssertionError at the first logit that is not the first probe's."""
    names = list(probes)
    for probe in probes.values():
        for i, request in enumerate(driver.requests):
            probe.add(i, request)
    while not driver.done:
        plan = driver.plan()
        if plan:
            logits = {name: probe.run(plan) for name, probe in probes.items()}
            for name in names[1:]:
                problem = first_difference(driver.step, plan, logits[names[0]], logits[name], name)
                assert problem is None, problem
        for i in driver.advance(plan):
            for probe in probes.values():
                probe.executor.remove(i)
    for probe in probes.values():
        probe.kv.check_idle()


def random_requests(rng: random.Random, vocab: int, lengths: list[tuple[int, int, int]]) -> list[Request]:
    """Requests from (arrival step, prompt length, new tokens)."""
    return [
        Request(prompt=[rng.randrange(vocab) for _ in range(length)], new_tokens=new, arrives=arrives)
        for arrives, length, new in lengths
    ]
