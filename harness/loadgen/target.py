"""Where requests go: a base URL taken apart, and the head of the requests sent there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.loadgen.bodies import PATHS, Endpoint

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One endpoint of one server."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    path: str
    authority: str  # the Host header
    api_key: str | None = None

    def head(self, body_bytes: int) -> bytes:
        """The request line and headers of a POST with a JSON body of that length."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {self.authority}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Accept-Encoding: identity",
            "User-Agent: hisparse-loadgen",
            f"Content-Length: {body_bytes}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def models_url(base_url: str) -> str:
    """Where the server under `base_url` lists its models. Raises ValueError."""
    target = parse_target(base_url, "completions")
    scheme = base_url.partition("://")[0]
    return f"{scheme}://{target.authority}{target.path.removesuffix(PATHS['completions'])}/v1/models"


def parse_target(
    base_url: str, endpoint: Endpoint, *, api_key: str | None = None, tls: ssl.SSLContext | None = None
) -> Target:
    """The endpoint under `base_url`: http or https, a path prefix allowed, with or without OpenAI's `/v1`.

    tls: instead of the system's certificates, for https. Raises ValueError for what is no such URL.
    """
    try:
        url = urlsplit(base_url)
        port = url.port
    except ValueError as error:
        raise ValueError(f"base_url is {base_url!r}: {error}") from error
    if url.scheme not in _PORTS or not url.hostname or port == 0:
        raise ValueError(f"base_url is {base_url!r}; it must be http://HOST[:PORT][/PATH], or https://")
    if url.query or url.fragment or url.username is not None:
        raise ValueError(f"base_url is {base_url!r}; it can have no user, query or fragment (there is an API key)")
    if not url.path.isascii() or any(c.isspace() for c in base_url) or not (api_key or "").isprintable():
        raise ValueError(f"base_url is {base_url!r}; it, or the API key, has characters that no header can carry")
    path = PATHS[endpoint]
    prefix = url.path.rstrip("/")
    if path.startswith("/v1/"):
        prefix = prefix.removesuffix("/v1")
    host = url.hostname.encode("idna").decode() if not url.hostname.isascii() else url.hostname
    return Target(
        host=host,
        port=port or _PORTS[url.scheme],
        tls=(tls or ssl.create_default_context()) if url.scheme == "https" else None,
        path=prefix + path,
        authority=(f"[{host}]" if ":" in host else host) + (f":{port}" if port else ""),
        api_key=api_key,
    )
