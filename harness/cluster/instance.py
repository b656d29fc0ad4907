"""A serving instance by Ray calls: an actor on each node it spans, of which the first leads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.cluster.calls import CALL_TIMEOUT_S, answer, call, call_all, result, wait_for
from harness.cluster.groups import Group
from harness.instances import InstanceError, Place
from harness.patience import Check
from harness.records import ServerStats

TRACE_TIMEOUT_S = 1000.0
STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class PointEnd:
    """What an instance says when a point is over."""

    stats: ServerStats
    log: str  # since the point before; of several nodes one after another, each under its rank
    selection_trace: bytes | None = None  # `trace.record`


class RemoteInstance:
    """An `instances.Instance` on one node or several; it is being started from the moment this is made."""

    def __init__(self, actors: list[Any], group: Group, start_timeout_s: float):
        self._actors, self._group = actors, group
        self._deadline_s = time.monotonic() + start_timeout_s + CALL_TIMEOUT_S
        self._starting: list[Any] = []
        self._log_ends = [0] * len(actors)
        self.url = ""
        if len(actors) == 1:
            self._starting = [actors[0].start.remote(Place())]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the nodes it lies on."""
        return tuple(node.id for node in self._group.nodes)

    def wait_started(self, check: Check = lambda: None) -> str:
        """The base URL, once it serves. Raises InstanceError when it does not start, and what `check` raises."""
        if not self._starting:
            self._start_together()
        leader, waiting = self._starting[0], list(self._starting)
        started: list[Any] = []  # actors but the first; one that is still to start a process has none to ask for
        while leader in waiting:
            for reference in wait_for(waiting, lambda: self._in_time(check, started)):
                try:
                    url = answer(reference, "start", CALL_TIMEOUT_S)
                except InstanceError as error:
                    raise _first_cause(error, started) from None
                waiting.remove(reference)
                if reference is leader:
                    self.url = str(url)
                else:
                    started.append(self._actors[self._starting.index(reference)])
            self._in_time(check, started)
        return self.url

    def check(self) -> None:
        """Raise InstanceError where its process on any node is gone."""
        call_all(self._actors, "check")

    def check_others(self) -> None:
        """`check` on all nodes but the first, without which the first one's requests would hang."""
        call_all(self._actors[1:], "check")

    def begin_point(self) -> ServerStats:
        """After a point's warm-up: `check`, empty the caches and read the counters, in one round trip."""
        leader, *others = self._actors
        asked = [leader.call_each.remote(("check",), ("flush",), ("stats",))]
        asked += [actor.call_each.remote(("check",)) for actor in others]
        said = [answer(reference, "the begin of a point", CALL_TIMEOUT_S) for reference in asked]
        stats = said[0][-1]
        assert isinstance(stats, ServerStats)
        return stats

    def end_point(self, *, with_trace: bool = False) -> PointEnd:
        """The counters, the log and, where one was recorded, the trace of the selections, in one round trip."""
        calls = (("stats",), ("selection_trace",)) if with_trace else (("stats",),)
        asked = [
            actor.call_each.remote(*((("check",),) if rank else calls), ("read_log", self._log_ends[rank]))
            for rank, actor in enumerate(self._actors)
        ]
        timeout_s = TRACE_TIMEOUT_S if with_trace else CALL_TIMEOUT_S
        said = [answer(reference, "the end of a point", timeout_s) for reference in asked]
        stats, *trace = said[0][:-1]
        assert isinstance(stats, ServerStats)
        return PointEnd(stats, self._new_log([own[-1] for own in said]), bytes(trace[0]) if trace else None)

    def new_log(self) -> str:
        """What the server logged since the last call, or the last `end_point`; of each node that still answers."""
        return self._new_log([_read_log(*own) for own in zip(self._actors, self._log_ends, strict=True)])

    def _new_log(self, read: Sequence[tuple[str, int]]) -> str:
        """One text of each node's log and the offset after it."""
        self._log_ends = [end for _, end in read]
        if len(read) == 1:
            return read[0][0]
        return "\n".join(f"--- node rank {rank}\n{text}" for rank, (text, _) in enumerate(read))

    def describe(self) -> dict[str, Any]:
        """What the instance says of itself, and of every node: whether it is what the config says, and who is there."""
        nodes = self.checked_nodes()
        actor = {**nodes[0]["actor"], "placement_group": self._group.id}
        return {**call(self._actors[0], "describe"), "actor": actor, "nodes": nodes}

    def checked_nodes(self) -> list[dict[str, Any]]:
        """Of each node its check (`harness.node_check`), its id and address, and the actor's process."""
        asked = [actor.node.remote() for actor in self._actors]
        found = [result(reference, "node") for reference in asked]
        return [
            {"node_id": node.id, "address": node.address, **said}
            for node, said in zip(self._group.nodes, found, strict=True)
        ]

    def stop(self) -> None:
        """End the server in order; where its actor is gone, the server ends with its standard input."""
        asked = [actor.call.remote("stop") for actor in self._actors]
        for reference in asked:
            try:
                answer(reference, "stop", STOP_TIMEOUT_S)
            except InstanceError as error:
                print(f"stopping an instance: {error}")

    def _start_together(self) -> None:
        """One process a node, none ready before all are there."""
        first = self._group.nodes[0]
        meeting = result(self._actors[0].meeting_point.remote(first.address), "meeting_point")
        count = len(self._actors)
        self._starting = [
            actor.start.remote(Place(node_rank=rank, num_nodes=count, dist_init_addr=str(meeting)))
            for rank, actor in enumerate(self._actors)
        ]

    def _in_time(self, check: Check, started: list[Any]) -> None:
        """While the leader starts the others may die, and it would wait for them."""
        check()
        call_all(started, "check")
        if time.monotonic() > self._deadline_s:
            raise InstanceError("the instance did not answer start in time", may_pass=True)


def _first_cause(error: InstanceError, others: list[Any]) -> InstanceError:
    """What another node says that will not pass, where this may be what came of it."""
    if error.may_pass:
        for actor in others:
            try:
                call(actor, "check")
            except InstanceError as said:
                if not said.may_pass:
                    return said
    return error


def _read_log(actor: Any, offset: int) -> tuple[str, int]:
    try:
        text, end = call(actor, "read_log", offset)
    except InstanceError as error:
        return f"(the log could not be read: {error})", offset
    return text, end
