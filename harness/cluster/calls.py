"""Calling the actor that holds an instance: its answer, or an InstanceError that says whether it may pass."""

from __future__ import annotations

from typing import Any

from harness.cluster.errors import first_line, is_lost
from harness.instances import InstanceError
from harness.patience import Check

POLL_S = 0.5
CALL_TIMEOUT_S = 60.0


def call(actor: Any, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """A method of the instance in the actor."""
    return answer(actor.call.remote(method, *args), method, timeout_s)


def call_all(actors: list[Any], method: str, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
    """The same method in each actor, at once; raises the first error."""
    asked = [actor.call.remote(method) for actor in actors]
    return [answer(reference, method, timeout_s) for reference in asked]


def answer(reference: Any, method: str, timeout_s: float) -> Any:
    """What a call of the instance gave."""
    outcome, value = result(reference, method, timeout_s)
    if outcome == "error":
        message, may_pass = value
        raise InstanceError(message, may_pass=may_pass)
    return value


def result(reference: Any, method: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """What a call of the actor gave."""
    import ray

    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        said = f"the instance did not answer {method} within {timeout_s:.0f} s"
        raise InstanceError(said, may_pass=True) from error
    except ray.exceptions.RayTaskError as error:
        raise InstanceError(f"{method} failed: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        said = f"the instance's actor is gone: {first_line(error)}"
        raise InstanceError(said, may_pass=is_lost(error)) from error


def wait_for(references: list[Any], check: Check) -> list[Any]:
    """Wait in short turns for the first of these to be there, so that a signal is heard and a deadline kept."""
    import ray

    while True:
        done, _ = ray.wait(references, timeout=POLL_S)
        if done:
            return list(done)
        check()
