"""Serve one cell: python -m harness.engine.server --config results/quickstart/CELL/c1-r0/config.yaml

The config file is a cell's (any point's `config.yaml`). Binds to loopback unless `engine.host` says otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

from aiohttp import web
from omegaconf.errors import OmegaConfBaseException

from harness.schema import Config, from_yaml


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.engine.server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="config.yaml of a cell")
    parser.add_argument("--port", type=int, help="instead of engine.port; 0 takes a free one")
    parser.add_argument("--weights", type=Path, help="folder of the model's weights, instead of model.weights")
    parser.add_argument("--ready-file", type=Path, help="file or pipe (/dev/fd/N) that gets the URL once ready")
    parser.add_argument(
        "--exit-with-stdin", action="store_true", help="end when standard input closes (the parent died)"
    )
    args = parser.parse_args()
    if not args.config.is_file():
        parser.error(f"--config {args.config}: no such file")
    try:
        config = from_yaml(args.config.read_text())
        if args.port is not None:
            config.engine.port = args.port
        asyncio.run(serve(config, weights=args.weights, ready_file=args.ready_file, watch_stdin=args.exit_with_stdin))
    except (OSError, ValueError, OmegaConfBaseException) as error:  # a taken port, no weights, another file's keys
        sys.exit(f"error: {' '.join(str(error).split())}")


async def serve(config: Config, *, weights: Path | None, ready_file: Path | None, watch_stdin: bool) -> None:
    """Run until SIGTERM, SIGINT or the end of standard input."""
    import torch

    from harness.engine.engine import Engine, wait_until_ready
    from harness.engine.kv.sharing import prefetch_label
    from harness.engine.server.app import Server
    from harness.engine.tokenizer import load_tokenizer
    from harness.weights import weights_folder

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if watch_stdin:
        threading.Thread(target=_watch_stdin, args=(loop, stop), daemon=True).start()

    torch.set_num_threads(max(1, int(config.platform.num_cpus)))
    folder = weights or weights_folder(config.model.weights)
    tokenizer = load_tokenizer(folder, config.model.vocab_size)
    engine = Engine(config, folder, tokenizer.eos_ids)
    engine.start()
    seconds = await asyncio.to_thread(wait_until_ready, engine)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    # handler_cancellation: a client that hangs up cancels its request
    runner = web.AppRunner(Server(config, engine, tokenizer).app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, config.engine.host, config.engine.port, shutdown_timeout=1.0, backlog=4096)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    host = config.engine.host
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(f"serving {config.model.name} with {config.offload.system.value} at {url} (warm-up {seconds:.2f} s)")
    if config.offload.system.offloads:
        print(f"host link: {config.platform.link_label}; prefetch: {prefetch_label(config)}")
    sys.stdout.flush()
    if ready_file:
        _announce(ready_file, json.dumps({"url": url, "pid": os.getpid()}))
    await stop.wait()
    await runner.cleanup()
    engine.stop()


def _announce(ready_file: Path, text: str) -> None:
    if ready_file.is_fifo():  # a pipe: a write this short arrives whole
        ready_file.write_text(text)
        return
    partial = ready_file.with_suffix(".part")
    partial.write_text(text)
    partial.rename(ready_file)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock this thread would hold when the interpreter ends
        pass
    last = threading.Timer(5.0, os._exit, args=(1,))  # a step that never ends must not keep us
    last.daemon = True
    last.start()
    loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # all is closed; the interpreter would take torch apart for a second
