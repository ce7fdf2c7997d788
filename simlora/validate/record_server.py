"""What a server says of itself: its models, version and KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from simlora.errors import ConfigError
from simlora.validate.record_metrics import cache_info, read_metrics

ARGUMENTS = "<arguments>"
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ServerInfo:
    """None: the server does not say."""

    base: str
    """Name of the base model."""
    adapters: tuple[str, ...]
    """Names of the adapters that it lists, in its order."""
    max_model_len: int | None
    version: str | None
    cache: dict[str, str]
    """vLLM's cache configuration, as text."""

    def number(self, key: str) -> int | None:
        """A whole number of the cache configuration."""
        text = self.cache.get(key, "")
        return int(text) if text.isdecimal() else None

    def flag(self, key: str) -> bool | None:
        return {"True": True, "False": False}.get(self.cache.get(key, ""))


async def ask_server(session: aiohttp.ClientSession, url: str, base: str | None) -> ServerInfo:
    """Look at the server before a recording.

    Args:
        base: the base model's name; None: the listed model that is no adapter.

    Raises:
        ConfigError: no server answers there, or none that is OpenAI-compatible, or the base model is not clear.
    """
    url = url.rstrip("/")
    listed = await _get(session, f"{url}/v1/models")
    if not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
        raise ConfigError(ARGUMENTS, "--url", url, "an OpenAI-compatible server: GET /v1/models gave no list of models")
    models = [model for model in listed["data"] if isinstance(model, dict) and isinstance(model.get("id"), str)]
    bases = [model for model in models if not model.get("parent")]
    names = [model["id"] for model in bases]
    if base is None:
        if not names:
            raise ConfigError(ARGUMENTS, "--model", None, "the base model's name: the server lists none")
        base = names[0]
    version = await _get(session, f"{url}/version", required=False)
    metrics = await read_metrics(session, url)
    length = next((model.get("max_model_len") for model in bases if model["id"] == base), None)
    return ServerInfo(
        base=base,
        adapters=tuple(model["id"] for model in models if model.get("parent")),
        max_model_len=length if isinstance(length, int) else None,
        version=str(version["version"]) if isinstance(version, dict) and version.get("version") else None,
        cache=cache_info(metrics or {}),
    )


async def _get(session: aiohttp.ClientSession, address: str, required: bool = True) -> Any:
    """JSON at the address; None where it is not required and not there."""
    try:
        async with session.get(address, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as response:
            if response.status == 200:
                return await response.json(content_type=None)
            problem = f"status {response.status}"
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
    if required:
        raise ConfigError(ARGUMENTS, "--url", address, f"an address where a server answers ({problem})")
    return None
