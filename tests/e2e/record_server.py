"""A small OpenAI-compatible server on 127.0.0.1 that can misbehave, in a thread of its own, and a clock for recordings
of it: what a test waits for is an event, never a time that a busy machine might exceed.

Its models: base; lora-1, lora-2 (listed adapters).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from simlora.scenario.root import Scenario
from simlora.validate.record import Recorded, RecordOptions, record_async

MODELS = [
    {"id": "base", "parent": None, "max_model_len": 4096},
    {"id": "lora-1", "parent": "base"},
    {"id": "lora-2", "parent": "base"},
]
GAP_S = 0.002
APART_S = 100.0
"""What record_jumping jumps by unless told."""
METRICS = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="base"} %d
vllm:num_requests_waiting{engine="0",model_name="base"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="base"} 0.25
vllm:num_preemptions_total{engine="0",model_name="base"} %d
vllm:prompt_tokens_total{engine="0",model_name="base"} %d
vllm:generation_tokens_total{engine="0",model_name="base"} %d
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="4096"} 1.0
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.0
vllm:lora_requests_info{max_lora="2",running_lora_adapters="lora-1,lora-2",waiting_lora_adapters="lora-1"} 2.0
"""


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward: who waits for a time then goes on at once."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def jump(self, by_s: float) -> None:
        self._ahead_s += by_s


class Server:
    """fault(count, body) -> name of a fault or "", for the count-th completion (from 1, warm-up included).

    on_hang() is called, in the server's thread, when a request begins to hang.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.fault: Any = lambda count, body: ""
        self.on_hang: Callable[[], object] = lambda: None
        self.metrics = self.usage = True
        self.running = self.prompt_tokens = self.generated = 0
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.runner: web.AppRunner | None = None
        self.stopping: asyncio.Task[None] | None = None

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": MODELS})

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.20.2"})

    async def show_metrics(self, request: web.Request) -> web.Response:
        if not self.metrics:
            raise web.HTTPNotFound
        return web.Response(text=METRICS % (self.running, len(self.bodies), self.prompt_tokens, self.generated))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        fault = self.fault(len(self.bodies), body)
        if body["model"] not in [model["id"] for model in MODELS]:
            return _error(404, f"The model `{body['model']}` does not exist.")
        if fault == "error-500":
            return _error(500, "EngineCore died")
        if fault == "hang":
            self.on_hang()
            await asyncio.Event().wait()
        if fault == "die":
            self.stopping = asyncio.create_task(self.stop())  # nobody connects any more, then connections break
            await asyncio.Event().wait()
        return await self._stream(request, body, fault)

    async def _stream(self, request: web.Request, body: dict[str, Any], fault: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        self.prompt_tokens += len(body["prompt"])
        try:
            for token in range(1, body["max_tokens"] + 1):
                await asyncio.sleep(GAP_S)
                if token == 3 and fault:
                    return await self._break(request, response, fault)
                self.generated += 1
                last = token == body["max_tokens"]
                await self._send(response, self._chunk(body, token, "length" if last else None))
            if self.usage:
                await self._send(response, {"choices": [], "usage": self._usage(body, body["max_tokens"])})
            await response.write(b"data: [DONE]\n\n")
        finally:
            self.running -= 1
        return response

    async def _break(self, request: web.Request, response: web.StreamResponse, fault: str) -> web.StreamResponse:
        if fault == "stream-error":
            await self._send(response, {"error": {"message": "out of memory", "code": 500}})
        elif fault == "not-json":
            await response.write(b"data: {oops\n\n")
        elif fault == "reset":
            request.transport.abort()
        return response

    async def _send(self, response: web.StreamResponse, data: dict[str, Any]) -> None:
        await response.write(f"data: {json.dumps(data)}\n\n".encode())

    def _chunk(self, body: dict[str, Any], token: int, reason: str | None) -> dict[str, Any]:
        chunk: dict[str, Any] = {"choices": [{"index": 0, "text": " a", "finish_reason": reason}]}
        if self.usage:
            chunk["usage"] = self._usage(body, token)
        return chunk

    def _usage(self, body: dict[str, Any], tokens: int) -> dict[str, int]:
        words = body["prompt"].split() if isinstance(body["prompt"], str) else body["prompt"]
        return {"prompt_tokens": len(words), "completion_tokens": tokens}

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/version", self.version)
        app.router.add_get("/metrics", self.show_metrics)
        app.router.add_post("/v1/completions", self.complete)
        self.runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self.runner is not None:
            runner, self.runner = self.runner, None
            await runner.cleanup()


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@contextmanager
def running_server() -> Iterator[Server]:
    server, loop = Server(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def record_jumping(
    server: Server,
    load: Scenario,
    out: Path,
    options: RecordOptions | None = None,
    jump_s: Callable[[int, int, int], float] = lambda sent, finished, failed: APART_S,
) -> Recorded:
    """Record, and put the recording's clock forward by jump_s(sent, finished, failed) whenever a request has ended, and
    by APART_S when one begins to hang."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, JumpingLoop)
        server.on_hang = lambda: loop.call_soon_threadsafe(loop.jump, APART_S)
        return runner.run(record_async(server.url, load, out, options, lambda *counts: loop.jump(jump_s(*counts))))
