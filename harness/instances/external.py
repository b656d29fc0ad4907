"""A server that somebody else runs, by its URL: anything OpenAI-compatible. It is neither started nor ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from harness.instances.base import ALONE, InstanceError, Place
from harness.instances.wire import fetch, fetch_json
from harness.records import ServerStats
from harness.schema import Config
from harness.sysinfo import own_machine


class ExternalInstance:
    """Health by /v1/models, which every such server has. Of counters, those that servers have in common."""

    def __init__(self, config: Config):
        assert config.engine.url is not None, "complete() was not called"
        self._config, self._url = config, config.engine.url

    def start(self, place: Place = ALONE) -> str:
        assert place.num_nodes == 1, "a server elsewhere has no nodes of ours"
        names = self._models()
        if self._config.model.name not in names:
            raise InstanceError(
                f"engine.url={self._url} serves {', '.join(names) or 'nothing'}, not model.name="
                f"{self._config.model.name}: set model.name to what it calls it"
            )
        return self._url

    def check(self) -> None:
        self._models()

    def flush(self) -> None:
        """SGLang has /flush_cache, vLLM /reset_prefix_cache in its development mode; others go without."""
        with suppress(InstanceError):
            fetch(self._url + "/flush_cache")

    def stats(self) -> ServerStats:
        return ServerStats(version=self._version())

    def read_log(self, offset: int) -> tuple[str, int]:
        return "", offset

    def describe(self) -> dict[str, Any]:
        server: dict[str, Any] = {"url": self._url, "version": self._version(), "models": self._models()}
        return {"machine": own_machine(), "server": server}

    def stop(self) -> None:
        """It is not ours to end."""

    def _models(self) -> list[str]:
        found = fetch_json(self._url + "/v1/models").get("data")
        try:
            return [str(model["id"]) for model in found or []]
        except (TypeError, KeyError) as error:
            raise InstanceError(f"{self._url}/v1/models names no models") from error

    def _version(self) -> str | None:
        """As SGLang and this project (/server_info) or vLLM (/version) say it."""
        for path in ("/server_info", "/version"):
            with suppress(InstanceError):
                version = fetch_json(self._url + path).get("version")
                if isinstance(version, str):
                    return version
        return None
