"""What SGLang's log says: why a start failed, in its own words, and what its batches held."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MESSAGE_CHARS = 400
_FATAL = re.compile(  # no server comes after one of these
    r"Scheduler hit an exception|Received sigquit from a child process|: error: |OutOfMemoryError|Not enough memory"
    r"|[Aa]ddress already in use|Rank \d+ scheduler (?:died|is dead)|NCCL error"
)
_KILLED = re.compile(r"exit code:? -9\b|terminated with -9\b")  # a process of its own, by SIGKILL: from outside
_ECHO = re.compile(  # what one process says of another's end
    r"EOFError|BrokenPipe|Connection\w*Error|[Cc]onnection (?:closed|reset|refused)|Dist(?:Network|Store|Backend)Error"
    r"|NCCL error|[Tt]imed? ?out"
)
_STAMP = r"(?:\[[^\]]*\]\s*)?"
_RAISED = re.compile(rf"^{_STAMP}((?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception|Interrupt|Exit|Timeout))(?:: (.*))?$")
_USAGE = re.compile(r"^\S.*?: error: (.*)$")


def is_fatal(log: str) -> bool:
    """Whether a line says that this start will come to nothing."""
    return _FATAL.search(log) is not None


def reason(log: str) -> str | None:
    """What went wrong in SGLang's own words: a usage error, or what the first traceback ends with; None without one.

    The first: those that follow are what other processes make of it.
    """
    in_traceback = False
    for line in log.splitlines():
        usage = _USAGE.match(line)
        if usage:
            return _short(usage.group(1))
        if "Traceback (most recent call last)" in line:
            in_traceback = True
            continue
        raised = _RAISED.match(line.strip()) if in_traceback else None
        if raised:
            return _short(f"{raised.group(1)}: {raised.group(2)}" if raised.group(2) else raised.group(1))
    return None


def is_own_fault(log: str, why: str) -> bool:
    """Whether it would end the same way again: a fatal line, and `why` (see `reason`) is a cause and not an echo.

    SGLang ends itself by SIGKILL, whatever happened: its exit code does not tell.
    """
    return is_fatal(log) and not _KILLED.search(log) and not _ECHO.search(why)


def _short(text: str) -> str:
    return " ".join(text.split())[:MESSAGE_CHARS]


@dataclass(slots=True)
class Peaks:
    """The most that batches held at once, on all data-parallel ranks together. None: not logged."""

    running: int | None = None
    device_tokens: int | None = None
    host_tokens: int | None = None


@dataclass(slots=True)
class _Rank:
    running: int = 0
    device: int = 0
    host: int = 0
    logged_host: bool = False
    logged: bool = field(default=False)


_BATCH = re.compile(r"\[(?P<stamp>[^\]]*)\] (?P<kind>Prefill|Decode) batch[^,]*, (?P<rest>.*)$")
_RANK = re.compile(r"\bDP\d+")
_NUMBER = {
    "running": re.compile(r"#running-req: (\d+)"),
    "new": re.compile(r"#new-seq: (\d+)"),
    "tokens": re.compile(r"#(?:full )?token: (\d+)"),
    "gpu": re.compile(r"#gpu token: (\d+)"),
    "cpu": re.compile(r"#cpu token: (\d+)"),
}


def peaks(log: str) -> Peaks:
    """Of a stretch of the log. Ranks peak at different moments: the sum is what each held at its own."""
    ranks: dict[str, _Rank] = {}
    for batch in filter(None, map(_BATCH.search, log.splitlines())):
        of, rest = _RANK.search(batch["stamp"]), batch["rest"]
        rank = ranks.setdefault(of.group() if of else "", _Rank())
        numbers = {name: int(found.group(1)) for name, pattern in _NUMBER.items() if (found := pattern.search(rest))}
        entering = numbers.get("new", 0) if batch["kind"] == "Prefill" else 0
        rank.running = max(rank.running, numbers.get("running", 0) + entering)
        if "gpu" in numbers or "tokens" in numbers:
            rank.device, rank.logged = max(rank.device, numbers.get("gpu", numbers.get("tokens", 0))), True
        if "cpu" in numbers:
            rank.host, rank.logged_host = max(rank.host, numbers["cpu"]), True
    return Peaks(*_sums(list(ranks.values())))


def _sums(ranks: list[_Rank]) -> Iterator[int | None]:
    yield sum(rank.running for rank in ranks) if ranks else None
    yield sum(rank.device for rank in ranks) if any(rank.logged for rank in ranks) else None
    yield sum(rank.host for rank in ranks) if any(rank.logged_host for rank in ranks) else None
