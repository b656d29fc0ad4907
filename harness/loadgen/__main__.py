"""Drive any OpenAI-compatible server, or SGLang's /generate, and print and keep what it did.

python -m harness.loadgen --base-url http://HOST:PORT --num-prompts 64 --max-concurrency 8 \\
    --random-input-len 1024 --random-output-len 128 --output-file runs.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool

from harness.loadgen.arguments import parse
from harness.loadgen.job import point_load
from harness.loadgen.local import run_local
from harness.loadgen.loop import run_on_own_loop
from harness.loadgen.report import append_line, result_line, summary
from harness.loadgen.run import run_point
from harness.loadgen.stopping import Stop, stopped_by_signals
from harness.records import Status


def main(argv: Sequence[str] | None = None) -> int:
    """0: ok; 1: the run failed or is invalid, and its line says why; 2: nothing was sent.

    130 (Ctrl-C) and 143 (SIGTERM): interrupted, and the line has what had come by then.
    """
    args, stop = parse(argv), Stop()
    try:
        if args.output_file:
            args.output_file.open("a").close()  # before the server is driven for minutes
        load = point_load(args)
        with stopped_by_signals(stop) as signals:
            if args.processes > 1:
                result = run_local(load, args.processes, stop)
            else:
                result = run_on_own_loop(run_point(load, stop=stop))
        line = result_line(args, load, result)
        if args.output_file:
            append_line(args.output_file, line)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenProcessPool:
        print("error: a load-generator process was killed; nothing is kept of this run", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is kept of this run", file=sys.stderr)
        return 130
    print("\n".join(summary(load, result)))
    if signals:
        return 128 + signals[0]
    return 0 if result.status is Status.OK else 1


if __name__ == "__main__":
    sys.exit(main())
