"""The categories of request time in words, for sentences; reports have shorter labels for tables."""

from __future__ import annotations

from types import MappingProxyType

CATEGORY_WORDS = MappingProxyType(
    {
        "queue_slots": "waiting for an adapter slot",
        "queue_kv": "waiting for KV memory",
        "queue_seqs": "waiting for a seat",
        "queue_tokens": "waiting for the scheduler's next look at the queue",
        "route": "the way to a replica: front end, router, cold starts",
        "load": "adapter loads that block the step",
        "prefill": "computing prompts",
        "decode_base": "decoding: the base model",
        "decode_lora": "decoding: the LoRA kernels",
        "host": "the host: scheduling and launching",
        "collective": "all-reduce between GPUs",
    }
)
"""The summary's bottleneck shares (results/shares.py)."""
