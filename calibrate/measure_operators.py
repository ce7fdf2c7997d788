"""The base model's operators: steps of a stack of decoder layers, single GEMMs and element-wise kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simlora.latency.shapes import Linear, attention_linears, logit_bytes_per_row, mlp_linears
from simlora.scenario.model import ModelSpec

from .bench import Bench, Row, Rows, measured
from .elementwise import add_norm, rope_and_cache, silu_mul
from .grid import model_named

MOST_LAYERS, FEWEST_LAYERS = 8, 2


class Decoder:
    """`layers` layers of distinct weights on one rank of `tp`, then lm_head and a greedy sampler.

    Where attention stands, its query columns go on as its output; attention is measured by itself.
    """

    def __init__(self, bench: Bench, model: ModelSpec, tp: int, most_tokens: int) -> None:
        self.model, self.tp = model, tp
        self.linears = (*attention_linears(model, tp), *mlp_linears(model, tp))
        self.vocab = model.vocab_size // tp
        self.heads = (model.num_attention_heads // tp, max(model.num_key_value_heads // tp, 1))
        self.layers = self._fitting(bench, most_tokens)
        scale = model.hidden_size**-0.5
        self.weights = [
            [bench.normal(sum(linear.outputs), linear.inputs, scale=scale) for linear in self.linears]
            for _ in range(self.layers)
        ]
        self.head = bench.normal(self.vocab, model.hidden_size, scale=scale)
        self.norm = bench.normal(model.hidden_size)
        self._buffers(bench, most_tokens)

    def _fitting(self, bench: Bench, most_tokens: int) -> int:
        """As many layers as half the memory holds, up to MOST_LAYERS."""
        size = bench.dtype.itemsize
        layer = sum(linear.elements for linear in self.linears) * size
        activations = most_tokens * (6 * self.model.hidden_size + 4 * max(sum(x.outputs) for x in self.linears)) * size
        head = self.vocab * self.model.hidden_size * size
        layers = min(MOST_LAYERS, int((0.9 * bench.memory_bytes - activations - head) / layer))
        bench.require_memory(FEWEST_LAYERS * layer + activations + head)
        return max(layers, FEWEST_LAYERS)

    def _buffers(self, bench: Bench, tokens: int) -> None:
        model = self.model
        qkv, o, gate_up, down = self.linears
        self.x, self.residual = bench.normal(tokens, model.hidden_size), bench.normal(tokens, model.hidden_size)
        self.normed = bench.empty(tokens, model.hidden_size)
        self.qkv, self.attended = bench.empty(tokens, sum(qkv.outputs)), bench.empty(tokens, o.inputs)
        self.gate_up, self.gated = bench.empty(tokens, sum(gate_up.outputs)), bench.empty(tokens, down.inputs)
        self.cache = bench.empty(tokens, 2 * self.heads[1] * model.head_dim)
        angle = torch.rand(tokens, model.head_dim // 2, device=bench.device)
        self.angles = (angle.cos(), angle.sin())

    def step(self, tokens: int, rows: int) -> None:
        """One step of `tokens` tokens with logits for the first `rows` of them."""
        x, residual, normed = self.x[:tokens], self.residual[:tokens], self.normed[:tokens]
        qkv, gate_up, gated = self.qkv[:tokens], self.gate_up[:tokens], self.gated[:tokens]
        angles, cache = (self.angles[0][:tokens], self.angles[1][:tokens]), self.cache[:tokens]
        queries = self.attended[:tokens]
        for w_qkv, w_o, w_gate_up, w_down in self.weights:
            add_norm(x, residual, self.norm, normed)
            torch.mm(normed, w_qkv.t(), out=qkv)
            rope_and_cache(qkv, angles, cache, self.heads)
            torch.mm(queries, w_o.t(), out=x)
            add_norm(x, residual, self.norm, normed)
            torch.mm(normed, w_gate_up.t(), out=gate_up)
            silu_mul(gate_up, gated)
            torch.mm(gated, w_down.t(), out=x)
        add_norm(x, residual, self.norm, normed)
        sample(torch.mm(normed[:rows], self.head.t()))


def sample(logits: torch.Tensor) -> torch.Tensor:
    """Greedy tokens of 16-bit logits, through float32 as engines do it."""
    return logits.float().argmax(-1)


MOST_GRAPH_TOKENS = 512
"""Largest size that serving engines capture: above it, steps are launched one kernel at a time."""
PREFILL_ROWS = 8
"""Sampled rows of a step with more tokens than that: the prompts that end in it."""


def dense_steps(bench: Bench, model: str, tp: int, tokens: tuple[int, ...]) -> Rows:
    """Steps of a stack of layers, in a CUDA graph, and eager where an engine would not capture them."""
    decoder = Decoder(bench, model_named(model), tp, max(tokens))
    for count in tokens:
        rows = count if count <= MOST_GRAPH_TOKENS else PREFILL_ROWS
        sizes: dict[str, Any] = {"model": model, "tp": tp, "layers": decoder.layers, "tokens": count, "rows": rows}
        run = _step(decoder, count, rows)
        yield measured("dense_step", bench.timer.graph, run, regime="graph", **sizes)
        if tp == 1 and (count > MOST_GRAPH_TOKENS or count in (tokens[0], 64)):
            yield measured("dense_step", bench.timer.eager, run, regime="eager", **sizes)


def _step(decoder: Decoder, tokens: int, rows: int) -> Callable[[], None]:
    return lambda: decoder.step(tokens, rows)


def gemms(bench: Bench, model: str, tp: int, tokens: tuple[int, ...]) -> Rows:
    """Every linear of a layer, and lm_head, over token counts; each pass goes over distinct weights."""
    spec = model_named(model)
    head = Linear("lm_head", spec.hidden_size, (spec.vocab_size // tp,))
    for linear in (*attention_linears(spec, tp), *mlp_linears(spec, tp), head):
        counts = [count for count in tokens if linear.name != "lm_head" or count <= MOST_GRAPH_TOKENS]
        yield from _gemm(bench, linear, counts, model=model, tp=tp)
        bench.release()


def _gemm(bench: Bench, linear: Linear, tokens: list[int], **sizes: object) -> Rows:
    outputs = sum(linear.outputs)
    copies = bench.copies(linear.elements * bench.dtype.itemsize)
    weights = [bench.normal(outputs, linear.inputs, scale=linear.inputs**-0.5) for _ in range(copies)]
    x, y = bench.normal(max(tokens), linear.inputs), bench.empty(max(tokens), outputs)
    for count in tokens:

        def run(count: int = count) -> None:
            for weight in weights:
                torch.mm(x[:count], weight.t(), out=y[:count])

        shape = {"linear": linear.name, "inputs": linear.inputs, "outputs": outputs, "tokens": count}
        yield measured("gemm", bench.timer.graph, run, copies, regime="graph", **sizes, **shape)


def elementwise(bench: Bench, model: str, tp: int, tokens: tuple[int, ...]) -> Rows:
    """Norms, rotary embedding with the cache write, gated activation, and the sampler; `bytes` read and written."""
    spec = model_named(model)
    for count in tokens:
        for name, run, moved, copies in _kernels(bench, spec, tp, count):
            yield measured(name, bench.timer.graph, run, copies, model=model, tp=tp, tokens=count, bytes=moved)
        if count <= MOST_GRAPH_TOKENS:
            yield _sampler(bench, spec, tp, count)


def _sampler(bench: Bench, spec: ModelSpec, tp: int, rows: int) -> Row:
    moved = rows * logit_bytes_per_row(spec, tp)
    logits = [bench.normal(rows, spec.vocab_size // tp) for _ in range(min(bench.copies(moved), 16))]
    sizes = {"model": spec.name, "tp": tp, "tokens": rows, "bytes": moved}
    return measured("sampler", bench.timer.graph, lambda: [sample(x) for x in logits], len(logits), **sizes)


def _kernels(bench: Bench, spec: ModelSpec, tp: int, tokens: int) -> list[tuple[str, Callable[[], None], int, int]]:
    """(operator, run over copies, bytes of one, copies)."""
    size, width = bench.dtype.itemsize, spec.hidden_size
    heads = (spec.num_attention_heads // tp, max(spec.num_key_value_heads // tp, 1))
    q, kv, ffn = heads[0] * spec.head_dim, heads[1] * spec.head_dim, spec.intermediate_size // tp
    moved = tuple(tokens * size * elements for elements in (4 * width, 2 * q + 4 * kv, 3 * ffn))
    n_norm, n_rope, n_silu = (bench.copies(amount, least=4) for amount in moved)
    xs = [(bench.normal(tokens, width), bench.normal(tokens, width), bench.empty(tokens, width)) for _ in range(n_norm)]
    weight = bench.normal(width)
    rotary = [(bench.normal(tokens, q + 2 * kv), bench.empty(tokens, 2 * kv)) for _ in range(n_rope)]
    angle = torch.rand(tokens, spec.head_dim // 2, device=bench.device)
    angles = (angle.cos(), angle.sin())
    gates = [(bench.normal(tokens, 2 * ffn), bench.empty(tokens, ffn)) for _ in range(n_silu)]

    def norms() -> None:
        for x, residual, out in xs:
            add_norm(x, residual, weight, out)

    def ropes() -> None:
        for qkv, cache in rotary:
            rope_and_cache(qkv, angles, cache, heads)

    def silus() -> None:
        for gate_up, out in gates:
            silu_mul(gate_up, out)

    return [("norm", norms, moved[0], n_norm), ("rope", ropes, moved[1], n_rope), ("silu_mul", silus, moved[2], n_silu)]
