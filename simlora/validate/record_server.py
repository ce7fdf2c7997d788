"""What a server says of itself: its models, version and KV cache, and its /metrics (Prometheus text, vLLM's names)."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from typing import Any

import aiohttp

from simlora.errors import ARGUMENTS, ConfigError

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The second is the name of older versions."""
COUNTERS = "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:num_preemptions"
LORA_INFO, CACHE_INFO = "vllm:lora_requests_info", "vllm:cache_config_info"
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_METRICS_TIMEOUT_S = 5.0

Sample = tuple[dict[str, str], float]
"""Labels and value."""


def parse_metrics(text: str) -> dict[str, list[Sample]]:
    """Metric name (without the _total of counters) -> its samples. Lines that are none are passed over."""
    found: dict[str, list[Sample]] = {}
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        labels = {name: text.replace('\\"', '"') for name, text in _LABEL.findall(match[2] or "")}
        found.setdefault(match[1].removesuffix("_total"), []).append((labels, value))
    return found


def total(metrics: dict[str, list[Sample]], *names: str) -> float | None:
    """Sum over all engines of the first of the names that is there."""
    for name in names:
        if name in metrics:
            return sum(value for _, value in metrics[name])
    return None


def usage(metrics: dict[str, list[Sample]]) -> float | None:
    """KV usage (0 to 1), the mean over all engines."""
    for name in KV_USAGE:
        if name in metrics:
            return sum(value for _, value in metrics[name]) / len(metrics[name])
    return None


def running_adapters(metrics: dict[str, list[Sample]]) -> int | None:
    """Adapters that have requests. Every combination is a series of its own, whose value is when it was last set."""
    samples = metrics.get(LORA_INFO)
    if not samples:
        return None
    labels, _ = max(samples, key=lambda sample: sample[1])
    names = f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}"
    return len({name.strip() for name in names.split(",") if name.strip()})


def cache_info(metrics: dict[str, list[Sample]]) -> dict[str, str]:
    """Labels of the cache configuration: num_gpu_blocks, block_size, enable_prefix_caching, ... Empty: not there."""
    samples = metrics.get(CACHE_INFO)
    return samples[0][0] if samples else {}


@dataclass
class Sampler:
    """Reads /metrics every `every_s`; a server without it gives no rows."""

    session: aiohttp.ClientSession
    url: str
    now_s: Callable[[], float]
    every_s: float
    before: InitVar[dict[str, list[Sample]] | None]
    """The metrics before the first request: counters grow from there."""
    rows: list[tuple[float | int | None, ...]] = field(default_factory=list)
    failures: int = 0
    _before: dict[str, float] = field(default_factory=dict)

    def __post_init__(self, before: dict[str, list[Sample]] | None) -> None:
        for name in COUNTERS:
            self._since_before(before or {}, name)

    async def run(self, over: asyncio.Event) -> None:
        """Every every_s, and a last time when it is over."""
        while not over.is_set():
            due_s = self.now_s() + self.every_s
            await self.sample()
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(due_s - self.now_s(), 0.0))
        await self.sample()

    async def sample(self) -> None:
        metrics = await read_metrics(self.session, self.url)
        if metrics is None:
            self.failures += 1
            return
        at_s = self.now_s()
        counts = [self._since_before(metrics, name) for name in COUNTERS]
        gauges = total(metrics, RUNNING), total(metrics, WAITING), usage(metrics)
        if gauges[0] is not None:
            self.rows.append((round(at_s, 6), *gauges, *counts, running_adapters(metrics)))

    def _since_before(self, metrics: dict[str, list[Sample]], name: str) -> float:
        """How much a counter has grown; a restarted server begins at 0 again."""
        value = total(metrics, name)
        if value is None:
            return 0.0
        before = self._before.get(name, value)
        self._before[name] = value
        return value - before if value >= before else value


async def read_metrics(session: aiohttp.ClientSession, url: str) -> dict[str, list[Sample]] | None:
    """The metrics as they are now; None if the server has none."""
    try:
        timeout = aiohttp.ClientTimeout(total=_METRICS_TIMEOUT_S)
        async with session.get(f"{url.rstrip('/')}/metrics", timeout=timeout) as response:
            return parse_metrics(await response.text()) if response.status == 200 else None
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return None


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
