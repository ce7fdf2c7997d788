"""How each kind of engine executes a step: graphs, kernels, launches, and who waits for whom.

| | graphs | host and GPU | LoRA kernels | source |
|---|---|---|---|---|
| vllm | execution.py | execution.py | padded over slots | vLLM 0.8.5 and 0.20 |
| slora | none | alternate | MBGMM prompts, MBGMV decodes | paper; code c1ddf48 |
| lorax | decodes of one rank up to 128 | alternate | SGMV, BGMV, a call for each rank | code a7394ba |
| punica | none | alternate | SGMV | code 591b598 |
| sglang | decodes, LoRA kernels always inside | host hidden behind the GPU | chunked SGMV | code of August 2026 |
| grouped, sequential | none | alternate | a loop over adapters | |
| merged-swap | none | alternate | none: merged into the weights | |

Launches of a Llama layer without graphs are counted from each engine's model code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simlora.latency.inputs import EngineSettings
from simlora.scenario.lora_modules import ALL_LINEAR, ATTENTION

Overlap = Literal["pipelined", "alternating", "hidden"]
Graphs = Literal["vllm", "none", "lorax", "sglang"]
Scheme = Literal["none", "fully-sharded", "sglang", "lorax", "slora"]


@dataclass(frozen=True)
class EngineProfile:
    """One engine's way of executing a step."""

    kind: str
    graphs: Graphs
    overlap: Overlap
    """pipelined and alternating: vLLM's versions decide. hidden: the host prepares a step while the GPU runs one."""
    prefill_kernels: str | None
    """Family of a step with prompts; None: no LoRA kernels."""
    decode_kernels: str | None
    one_rank: bool = False
    """The kernels are called once for each distinct rank."""
    sharded: bool = False
    """Tensor parallelism splits A and B both."""
    collectives: Scheme = "none"
    """Beyond the base model's two all-reduces a layer."""
    torch_launches: int = 0
    """Kernels of a layer without graphs and without LoRA, launched through PyTorch."""
    triton_launches: int = 0
    modules: tuple[str, ...] | None = None
    """Modules that every adapter has on the GPU; None: those of the scenario."""
    unused_runs: bool = False
    """Steps without adapters launch the LoRA kernels all the same."""


PROFILES = {
    "vllm": EngineProfile("vllm", "vllm", "pipelined", "padded", "padded"),
    "slora": EngineProfile(
        "slora", "none", "alternating", "mbgmm", "mbgmv", sharded=True, collectives="slora",
        torch_launches=11, triton_launches=9, modules=ATTENTION,
    ),
    "lorax": EngineProfile(
        "lorax", "lorax", "alternating", "sgmv", "bgmv", one_rank=True, sharded=True, collectives="lorax",
        torch_launches=11,
    ),
    "punica": EngineProfile("punica", "none", "alternating", "sgmv", "sgmv", torch_launches=15, modules=ALL_LINEAR),
    "sglang": EngineProfile(
        "sglang", "sglang", "hidden", "csgmv", "csgmv", collectives="sglang", torch_launches=11, unused_runs=True
    ),
    "grouped": EngineProfile("grouped", "none", "alternating", "loop", "loop", torch_launches=15),
    "sequential": EngineProfile("sequential", "none", "alternating", "loop", "loop", torch_launches=15),
    "merged-swap": EngineProfile("merged-swap", "none", "alternating", None, None, torch_launches=15),
}  # fmt: skip

SLORA_PROMPT, SLORA_RANK, SLORA_PROMPTS = 200, 64, 2
"""S-LoRA's code takes its Triton prefill kernels from this longest prompt, largest rank and number of prompts on."""


def engine_profile(engine: EngineSettings) -> EngineProfile:
    """The kind's profile; engine.kernels other than its own replaces its kernels, for prompts and decodes alike.

    Raises KeyError for an unknown kind.
    """
    profile = PROFILES[engine.kind]
    if profile.kind == "vllm" and engine.fully_sharded_loras:
        profile = replace(profile, sharded=True, collectives="fully-sharded")
    if profile.decode_kernels is None or engine.kernels == profile.decode_kernels:
        return profile
    return replace(profile, prefill_kernels=engine.kernels, decode_kernels=engine.kernels, one_rank=False)


def lorax_padded_rank(rank: int, tp: int = 1) -> int:
    """The rank that LoRAX stores and computes: 8 per GPU at least, then multiples of 16; 0 stays 0."""
    if rank <= 0:
        return 0
    return 8 * tp if rank <= 8 * tp else -(-rank // 16) * 16


def slora_segmented(prompts: int, longest: int, max_rank: int) -> bool:
    """Whether S-LoRA's published code takes its segmented kernels for these prompts, not one row a token."""
    return longest >= SLORA_PROMPT and max_rank >= SLORA_RANK and prompts >= SLORA_PROMPTS
