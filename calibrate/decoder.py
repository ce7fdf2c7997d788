"""A stack of decoder layers without attention over the context: what a step does whatever its context."""

from __future__ import annotations

import torch

from simlora.latency.shapes import attention_linears, mlp_linears
from simlora.scenario.model import ModelSpec

from .bench import Bench
from .elementwise import add_norm, rope_and_cache, silu_mul

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
