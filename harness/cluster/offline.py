"""Cells that serve nothing, measured by Ray calls."""

from __future__ import annotations

from typing import Any

from harness.cluster.calls import CALL_TIMEOUT_S, wait_for
from harness.cluster.errors import first_line, is_lost
from harness.cluster.groups import Group
from harness.offline import Measurement, OfflineError
from harness.patience import Check
from harness.schema import Config


class RemoteOffline:
    """What measures cells in place, in a process of its own. After an OfflineError that may pass it is of no use."""

    def __init__(self, actor: Any, group: Group):
        self._actor, self._group = actor, group

    def measure(self, config: Config, concurrency: int, repeat: int, check: Check = lambda: None) -> Measurement:
        """One point. Raises OfflineError when it cannot be made or the process dies, and what `check` raises."""
        reference = self._actor.measure.remote(config, concurrency, repeat)
        wait_for([reference], check)
        outcome, value = self._get(reference, None)
        if outcome == "error":
            raise OfflineError(value)
        assert isinstance(value, Measurement)
        return value

    def describe(self) -> dict[str, Any]:
        """The machine it runs on, its node, the process and the placement group of its actor. Raises OfflineError."""
        said = self._get(self._actor.describe.remote(), CALL_TIMEOUT_S)
        actor = {**said["actor"], "placement_group": self._group.id}
        return {**said, "actor": actor, "node_id": self._group.nodes[0].id}

    def _get(self, reference: Any, timeout_s: float | None) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise OfflineError(f"the measurement failed: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            said = f"the measurement's process died: {first_line(error)}"
            raise OfflineError(said, may_pass=is_lost(error)) from error
