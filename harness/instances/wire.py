"""HTTP to a server beside us: whole answers, and problems as one line."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from harness.instances.base import InstanceError

TIMEOUT_S = 45.0  # a busy machine answers late; below the time that a call of the actor around it has
# A proxy of the environment is not for loopback, nor for the nodes of a cluster.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Refused(InstanceError):
    """The server answered with an error."""


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """The body of a GET. Raises Refused, and InstanceError where nobody answers."""
    path = "/" + url.split("://", 1)[-1].partition("/")[2]
    try:
        with _HTTP.open(url, timeout=timeout_s) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        raise Refused(f"{path} answered {error.code}: {error.read().decode(errors='replace')[:300].strip()}") from error
    except (OSError, http.client.HTTPException) as error:
        raise InstanceError(f"{path} did not answer: {error}") from error


def fetch_json(url: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The JSON object a GET gives. Raises InstanceError."""
    try:
        return dict(json.loads(fetch(url, timeout_s)))
    except ValueError as error:
        raise InstanceError(f"{url} gave no JSON object: {error}") from error
