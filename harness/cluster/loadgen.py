"""A load generator by Ray calls: one process or several that drive points together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from harness.cluster.calls import CALL_TIMEOUT_S
from harness.cluster.errors import LoadgenError, first_line, is_lost
from harness.cluster.groups import Group
from harness.loadgen.point import PointLoad, Seen
from harness.loadgen.together import run_together
from harness.sysinfo import boot_id


class RemoteLoadgen:
    """A load generator in processes of its own. After a LoadgenError it is of no more use."""

    def __init__(self, actors: Sequence[Any], groups: Sequence[Group]):
        self._actors, self._groups = actors, groups
        self._described: dict[str, Any] | None = None

    def run(self, load: PointLoad, on_progress: Callable[[int, int, float], None] | None = None) -> Seen:
        """Drive one point. `on_progress` is given requests done, tokens (about) and seconds, now and then.

        Raises LoadgenError when one of the load generator's processes dies or fails, and what `on_progress` raises;
        it then still drives the point.
        """
        with _as_loadgen_error():
            return run_together(load, [_Worker(actor) for actor in self._actors], boot_id(), on_progress)

    def describe(self) -> dict[str, Any]:
        """The machine it runs on, its node, the process and the placement group of its actor; `more` likewise.

        Raises LoadgenError.
        """
        import ray

        if self._described is None:
            with _as_loadgen_error():
                found = ray.get([actor.describe.remote() for actor in self._actors], timeout=CALL_TIMEOUT_S)
            first, *more = [
                {**said, "actor": {**said["actor"], "placement_group": group.id}, "node_id": group.nodes[0].id}
                for said, group in zip(found, self._groups, strict=True)
            ]
            self._described = first | {"more": more} if more else first
        return self._described


class _Worker:
    """An actor as `harness.loadgen.together` calls it."""

    def __init__(self, actor: Any):
        self._actor = actor

    def call(self, method: str, *args: Any) -> Future[Any]:
        return getattr(self._actor, method).remote(*args).future()


@contextmanager
def _as_loadgen_error() -> Iterator[None]:
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise LoadgenError(f"the load generator failed: {error.cause!r}", may_pass=False) from error
    except ray.exceptions.RayError as error:
        raise LoadgenError(f"the load generator died: {first_line(error)}", may_pass=is_lost(error)) from error
    except TimeoutError as error:
        raise LoadgenError("the load generator does not answer", may_pass=True) from error
