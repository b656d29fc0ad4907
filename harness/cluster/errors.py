"""What can go wrong with a cluster, and what Ray's own errors mean for a measurement."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The cluster cannot be reached or cannot give what was asked. The message is one line."""


class NoRoom(ClusterError):
    """No nodes for one cell, within `cluster.ready_timeout_s`."""


class LoadgenError(RuntimeError):
    """The load generator died or failed; another one can be had. The message is one line.

    may_pass: whether it died, so that the same point may well succeed with another.
    """

    def __init__(self, message: str, *, may_pass: bool):
        super().__init__(message)
        self.may_pass = may_pass


def is_lost(error: BaseException) -> bool:
    """Whether a RayError says that a process or its node was lost, and not that it was never able to run."""
    import ray

    exceptions = ray.exceptions
    if isinstance(error, exceptions.RuntimeEnvSetupError | exceptions.ActorUnschedulableError):
        return False
    return not (isinstance(error, exceptions.RayActorError) and getattr(error, "actor_init_failed", False))


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
