"""Record which requests a real SGLang server lets in when: python tests/simulation/record_sglang_admission.py --help

Start the server with a small token pool, one token a page, no radix cache and no overlap of scheduling, for instance
    python -m sglang.launch_server --model-path TINY --load-format dummy --device cpu --attention-backend torch_native \
        --port 31000 --max-total-tokens 700 --context-length 700 --disable-radix-cache --disable-overlap-schedule
and then, with nothing but Python,
    python tests/simulation/record_sglang_admission.py --port 31000 --out tests/simulation/data/sglang_admission.json

The second request fits only when the first has ended, so that all others wait behind it in the order they were sent.
A request was let in after those that had ended before its first token came; that is what is kept, in order.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
import urllib.request
from pathlib import Path

TRACES = {  # name -> (seed, number of requests, prompt lengths, output lengths)
    "mixed": (0, 30, (5, 200), (5, 160)),
    "long_prompts": (1, 20, (120, 200), (20, 60)),
    "long_outputs": (2, 14, (5, 40), (60, 240)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    info = _get(options.port, "/server_info")
    keys = ("version", "disable_radix_cache", "page_size", "max_total_num_tokens", "chunked_prefill_size")
    said = {key: info.get(key) for key in keys} | {"max_running_requests": info.get("max_running_requests")}
    room = info["max_total_num_tokens"]
    traces = {name: _trace(options.port, room, *spec) for name, spec in TRACES.items()}
    command = "see tests/simulation/record_sglang_admission.py"
    found = {"recorded_with": command, "date": time.strftime("%Y-%m-%d"), "server": said, "traces": traces}
    options.out.write_text(_compact(found), encoding="utf-8")


def _compact(found: dict[str, object]) -> str:
    """One line a key, so that the file can be read and compared."""
    traces = found.pop("traces")
    assert isinstance(traces, dict)
    head = json.dumps(found, indent=1)[:-2]
    body = ",\n".join(
        f' "{name}": {{\n' + ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in trace.items()) + "\n }"
        for name, trace in traces.items()
    )
    return f'{head},\n "traces": {{\n{body}\n }}\n}}\n'


def _trace(
    port: int, room: int, seed: int, count: int, prompts: tuple[int, int], outputs: tuple[int, int]
) -> dict[str, object]:
    rng = random.Random(seed)
    lengths = [(room - 200, 100), (201, 2)]  # the second waits for the first's end, all others for it
    lengths += [(rng.randint(*prompts), rng.randint(*outputs)) for _ in range(count)]
    events: list[tuple[float, str, int]] = []
    threads = []
    for number, (prompt, output) in enumerate(lengths):
        threads.append(threading.Thread(target=_request, args=(port, number, prompt, output, events)))
        threads[-1].start()
        time.sleep(0.5 if number == 0 else 0.03)
    for thread in threads:
        thread.join()
    events.sort()
    first = next(at for at, what, number in events if number == 0 and what == "end")
    assert min(at for at, what, number in events if number and what == "in") > first, "the first one did not fill it"
    order = [[what, number] for _, what, number in events]
    times = [round((at - events[0][0]) * 1e3, 1) for at, _, _ in events]
    return {"requests": lengths, "events": order, "times_ms": times}


def _request(port: int, number: int, prompt: int, output: int, events: list[tuple[float, str, int]]) -> None:
    ids = [(number * 7919 + i * 31) % 900 + 50 for i in range(prompt)]
    sampling = {"max_new_tokens": output, "ignore_eos": True, "temperature": 0}
    body = {"input_ids": ids, "stream": True, "sampling_params": sampling}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    first = None
    with urllib.request.urlopen(request, timeout=300) as stream:
        for line in stream:
            if line.startswith(b"data: {") and first is None:
                first = time.monotonic()
                events.append((first, "in", number))
            if line.startswith(b"data: {"):
                last = line
    events.append((time.monotonic(), "end", number))
    tokens = json.loads(last[6:])["meta_info"]["completion_tokens"]
    assert tokens == output, (number, tokens, output)


def _get(port: int, path: str) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
