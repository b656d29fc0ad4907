"""Selection traces from the command line: python -m workloads inspect|generate|record|import|cut|replay

inspect FILE ...                                  what a trace is, and whether all of it is whole
generate glm51_longbench --layers 4 --out FILE    a synthetic trace by the calibration of that name in conf/workload/
record [KEY=VALUE ...]                            run an experiment with trace.record=true (default: smollm2_trace)
import sglang FILE --model M --layers 61 --top-k 2048 --out FILE
import dsa FILE --model M --out FILE              JSONL with a selected_token_pos a line
cut FILE --every 3 --out FILE                     every third layer of a trace
replay FILE --policy lru,belady --slots 4096,8192
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from workloads.replay import POLICIES, ReplayConfig, replay
from workloads.traces import Trace, TraceHeader, TraceWriter
from workloads.traces.importers import import_dsa_jsonl, import_sglang
from workloads.traces.shipped import find_trace
from workloads.traces.synthetic import SyntheticStream


def main(argv: list[str] | None = None) -> int:
    """0: done; 1: an experiment of `record` had points that are not ok; 2: refused, with one line that says why."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:  # of a file that is there when it begins, such as on a disk that fills up
        print(f"error: {error.filename or args.command}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workloads", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    inspect = commands.add_parser("inspect", help="what a trace is, and whether all of it is whole")
    inspect.add_argument("files", nargs="+", metavar="FILE")
    inspect.set_defaults(run=_inspect)

    generate = commands.add_parser("generate", help="a synthetic trace by a calibration")
    generate.add_argument("calibration", help="a workload of conf/workload/ such as glm51_longbench")
    generate.add_argument("--out", type=Path, required=True)
    generate.add_argument("--requests", type=_positive, default=1)
    generate.add_argument("--layers", type=_positive, help="default: all of the model's")
    generate.add_argument("--steps", type=_positive, help="default: the calibration's")
    generate.add_argument("--seed", type=int, default=0)
    generate.set_defaults(run=_generate)

    record = commands.add_parser("record", help="run an experiment with trace.record=true")
    record.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    record.set_defaults(run=_record)

    bring = commands.add_parser("import", help="another engine's selections as a trace")
    bring.add_argument("format", choices=("sglang", "dsa"))
    bring.add_argument("file", type=Path)
    bring.add_argument("--out", type=Path, required=True)
    bring.add_argument("--model", required=True)
    bring.add_argument("--layers", type=_positive, help="sglang: layers with an indexer")
    bring.add_argument("--top-k", type=_positive, help="sglang: the indexer's k")
    bring.add_argument("--include-prompt", action="store_true", help="sglang: the prompt's selections too")
    bring.set_defaults(run=_import)

    cut = commands.add_parser("cut", help="some layers of a trace as a smaller one")
    cut.add_argument("file", metavar="FILE")
    cut.add_argument("--every", type=_positive, required=True, help="3: layers 0, 3, 6, ..")
    cut.add_argument("--out", type=Path, required=True)
    cut.set_defaults(run=_cut)

    again = commands.add_parser(
        "replay",
        help="misses of a trace under replacement policies",
        epilog="policies:\n" + "\n".join(f"  {name:<13} {policy.summary}" for name, policy in POLICIES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    again.add_argument("file", metavar="FILE")
    again.add_argument("--policy", default=",".join(POLICIES), help="names, comma-separated; default: all")
    again.add_argument("--slots", help="B, comma-separated; default: 2k")
    again.add_argument("--tokens", type=_positive, default=1, help="tokens of one decode step (MTP)")
    again.add_argument("--empty", action="store_true", help="caches begin empty")
    again.set_defaults(run=_replay)
    return parser


def _inspect(args: argparse.Namespace) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for name in args.files:
        trace = Trace(find_trace(name))
        header = trace.header
        console.print(f"{trace.path}: {header.source}, {header.model}, {header.selector}, k={header.top_k}")
        console.print(
            f"  {header.num_requests} requests, {header.num_layers} layers, {trace.num_selections:,} selections of "
            f"{trace.num_positions / trace.num_selections:,.1f} positions; prompt {trace.prompt_len:,}, "
            f"{trace.most_steps:,} steps; {'in the selector’s order' if header.ordered else 'unordered'}"
        )
        console.print(
            f"  {trace.size:,} bytes: {trace.size / trace.num_selections:,.1f} a selection, "
            f"{8 * trace.size / trace.num_positions:.2f} bits a position (int32: 32)"
        )
        trace.verify()
        reuse = np.concatenate([_reuse(stream.selections, stream.context_lens) for stream in trace] or [np.zeros(0)])
        console.print(f"  whole; adjacent-step reuse {100 * reuse.mean():.2f}%" if len(reuse) else "  whole; one step")


def _reuse(selections: np.ndarray, context_lens: np.ndarray) -> np.ndarray:
    """AVSG's adjacent-step reuse (section 4.4) as the policy `staging` has it: the share of each step's positions that
    the step before had, from the second step on.

    The newest position, which no step before could select, counts as kept; it sits in a slot beside the cache and is
    fetched if the next step selects it again. Either is one position in k.
    """
    steps = [(row[row >= 0], length - 1) for row, length in zip(selections, context_lens, strict=True)]
    kept = [
        np.isin(now, before[before != newest_before]) | (now == newest)
        for (before, newest_before), (now, newest) in itertools.pairwise(steps)
        if len(now)
    ]
    return np.array([row.mean() for row in kept])


def _generate(args: argparse.Namespace) -> None:
    from harness.config import load_cells  # Hydra

    overrides = ["experiment=fig6", f"workload={args.calibration}", "replay.policy=lru", "offload.cache_slots=null"]
    overrides += [f"workload.seed={args.seed}", "tracker=none"]
    overrides += [f"workload.output_len={args.steps}"] * (args.steps is not None)
    overrides += [f"model.num_layers={args.layers}"] * (args.layers is not None)
    (config,) = load_cells(overrides)
    work, top_k = config.workload, config.selector.top_k
    assert top_k is not None
    header = TraceHeader(
        model=config.model.name,
        selector=config.selector.kind.value,
        top_k=top_k,
        source="synthetic",
        provenance={"calibration": work.name, "seed": args.seed, "prompt_len": work.input_len},
    )
    with TraceWriter(args.out, header) as writer:
        for request in range(args.requests):
            for layer in range(config.model.num_layers):
                for block in SyntheticStream.of(work, top_k, request, layer):
                    writer.append(request, layer, *block)
                writer.end_stream(request, layer)
    print(args.out)


def _record(args: argparse.Namespace) -> int:
    from harness.__main__ import main as run
    from harness.config import load_cells
    from harness.experiment import experiment_dir

    chosen = any(override.startswith("experiment=") for override in args.overrides)
    overrides = [*args.overrides, "trace.record=true", *([] if chosen else ["experiment=smollm2_trace"])]
    code = run(overrides)
    if code != 2 and (folder := experiment_dir(load_cells(overrides)[0])).is_dir():
        for path in sorted(folder.glob("*/*/selections.trace")):
            print(path)
    return code


def _import(args: argparse.Namespace) -> None:
    if args.format == "sglang":
        if args.layers is None or args.top_k is None:
            raise ValueError("import sglang needs --layers and --top-k: the response does not say its shape")
        import_sglang(
            args.file,
            args.out,
            model=args.model,
            num_layers=args.layers,
            top_k=args.top_k,
            include_prompt=args.include_prompt,
        )
    else:
        import_dsa_jsonl(args.file, args.out, model=args.model)
    print(args.out)


def _cut(args: argparse.Namespace) -> None:
    trace = Trace(find_trace(args.file))
    provenance = {**trace.header.provenance, "layers": f"every {args.every} of {trace.header.num_layers}"}
    with TraceWriter(args.out, replace(trace.header, provenance=provenance)) as writer:
        for request, layer in trace.streams:
            if layer % args.every == 0:
                for block in trace.blocks(request, layer):
                    writer.append(request, layer, *block)
                writer.end_stream(request, layer)
    print(args.out)


def _replay(args: argparse.Namespace) -> None:
    trace = Trace(find_trace(args.file))
    slots = [_slots(text) for text in args.slots.split(",")] if args.slots else [2 * trace.header.top_k]
    configs = [
        ReplayConfig(policy, b, tail=not args.empty, tokens=args.tokens)
        for policy in args.policy.split(",")
        for b in (slots if policy != "staging" else slots[:1])
    ]
    begin = time.perf_counter()
    results = replay((trace.blocks(*key) for key in trace.streams), configs)
    seconds = time.perf_counter() - begin
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("policy")
    for column in ("B", "miss rate", "first step's"):
        table.add_column(column, justify="right")
    for result in results:
        config, first = result.config, result.per_step()[0]
        b = f"{config.cache_slots:,}" if config.policy != "staging" else "-"
        table.add_row(config.policy, b, f"{100 * result.miss_rate:.2f}%", f"{100 * first:.2f}%")
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"{len(configs) * trace.num_positions / seconds / 1e6:,.0f} million selections a second, reading included"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)


def _slots(text: str) -> int:
    try:
        return _positive(text.strip())
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--slots: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
