"""A server that looks like SGLang's from outside, with a child process of its own; MODE in its environment says how it
behaves. Run as `python fake_sglang.py -m sglang.launch_server --port N ...`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

METRICS = """sglang:realtime_tokens_total{mode="decode",tp_rank="0",pp_rank="0"} 12.0
sglang:max_total_num_tokens{tp_rank="0",pp_rank="0"} 8192.0
"""
BUSY = {"flushes": 2}  # refused until then
HEALTHY_AT = time.monotonic() + 0.3


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/health": self._health,
            "/server_info": lambda: (200, json.dumps(INFO)),
            "/metrics": lambda: (200, METRICS),
            "/flush_cache": self._flush,
            "/decode": self._decode,
            "/v1/models": lambda: (200, json.dumps({"data": [{"id": "tiny"}]})),
        }
        code, text = answers.get(self.path, lambda: (404, "no such path"))()
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def _health(self) -> tuple[int, str]:
        if os.environ.get("MODE") == "busy":  # it generates a token for it
            time.sleep(6.0)
        return 200 if time.monotonic() > HEALTHY_AT else 503, ""

    def _decode(self) -> tuple[int, str]:
        print("[2026-11-30 06:56:14] Decode batch, #running-req: 2, #token: 30, token usage: 0.00", flush=True)
        return 200, ""

    def _flush(self) -> tuple[int, str]:
        BUSY["flushes"] -= 1
        return (200, "flushed") if BUSY["flushes"] < 0 else (400, "requests are running")

    def log_message(self, format: str, *args: object) -> None:
        pass


INFO = {
    "version": "0.5.23",
    "launch_command": " ".join(sys.argv[1:]),
    "api_key": "never-to-be-kept",
    "tp_size": 1,
    "quantization": None,
    "internal_states": [{"memory_usage": {"weight": 1.5}}],
}


def main() -> None:
    mode = os.environ.get("MODE", "")
    print("child", subprocess.Popen(["sleep", "600"]).pid, flush=True)
    print("[2026-11-30 06:56:10] Decode batch, #running-req: 9, #token: 90, token usage: 0.00", flush=True)
    print("PYTHONPATH", os.environ.get("PYTHONPATH"), flush=True)
    if mode == "fatal":  # hangs after a fatal line, as a rank does whose peer has died
        print("[t TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File")
        print("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", flush=True)
        time.sleep(600)
    if mode == "usage":
        sys.exit("launch_server.py: error: unrecognized arguments: --foo")
    if mode == "silent":
        time.sleep(600)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
