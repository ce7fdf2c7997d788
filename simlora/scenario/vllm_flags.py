"""What simlora makes of each flag of `vllm serve`: a table, no code.

Names are without the leading dashes, with hyphens. Source: vLLM's EngineArgs and API-server flags, 0.8.5 and 0.20.
"""

from __future__ import annotations

from types import MappingProxyType

INTEGERS = MappingProxyType(
    {
        "tensor-parallel-size": "tensor_parallel_size",
        "tp": "tensor_parallel_size",
        "pipeline-parallel-size": "pipeline_parallel_size",
        "pp": "pipeline_parallel_size",
        "max-loras": "max_loras",
        "max-lora-rank": "max_lora_rank",
        "max-cpu-loras": "max_cpu_loras",
        "max-num-seqs": "max_num_seqs",
        "max-num-batched-tokens": "max_num_batched_tokens",
        "max-model-len": "max_model_len",
        "block-size": "block_size",
        "num-gpu-blocks-override": "num_gpu_blocks_override",
    }
)
"""Flag -> field of the engine. Whole numbers, also as 8k (8,000) or 8K (8,192)."""

FLOATS = MappingProxyType({"gpu-memory-utilization": "gpu_memory_utilization"})

SWITCHES = MappingProxyType(
    {
        "enable-lora": "enable_lora",
        "enforce-eager": "enforce_eager",
        "fully-sharded-loras": "fully_sharded_loras",
        "specialize-active-lora": "specialize_active_lora",
        "enable-chunked-prefill": "enable_chunked_prefill",
        "enable-prefix-caching": "enable_prefix_caching",
        "async-scheduling": "async_scheduling",
    }
)
"""Flag -> field; --no-FLAG sets it to false."""

LISTS = frozenset({"lora-modules", "lora-target-modules"})
"""Flags that take all values up to the next flag."""

NEUTRAL = MappingProxyType(
    {
        "quantization": ("none",),
        "kv-cache-dtype": ("auto", "bfloat16"),
        "dtype": ("auto", "bfloat16", "float16", "half"),
        "lora-dtype": ("auto", "bfloat16", "float16"),
        "data-parallel-size": ("1",),
        "cpu-offload-gb": ("0",),
        "scheduling-policy": ("fcfs",),
        "scheduler-delay-factor": ("0", "0.0"),
        "performance-mode": ("balanced",),
        "max-num-partial-prefills": ("1",),
        "long-prefill-token-threshold": ("0",),
        "stream-interval": ("1",),
        "api-server-count": ("1",),
        "num-scheduler-steps": ("1",),
        "decode-context-parallel-size": ("1",),
        "device": ("auto", "cuda"),
        "optimization-level": ("2",),
        "kv-cache-memory-bytes": (),
        "compilation-config": (),
        "cudagraph-capture-sizes": (),
        "max-cudagraph-capture-size": (),
        "attention-backend": (),
        "speculative-config": (),
        "speculative-model": (),
        "num-speculative-tokens": (),
        "kv-transfer-config": (),
        "kv-offloading-size": (),
        "hf-overrides": (),
        "rope-scaling": (),
        "rope-theta": (),
        "config": (),
        "scheduler-cls": (),
        "num-lookahead-slots": ("0",),
        "preemption-mode": ("recompute",),
        "max-seq-len-to-capture": (),
        "additional-config": (),
        "default-mm-loras": (),
        "qlora-adapter-name-or-path": (),
    }
)
"""Flags that change timing and are not modelled: only these values, which change nothing, are accepted."""

NEUTRAL_SWITCHES = frozenset(
    {
        "enable-expert-parallel",
        "enable-eplb",
        "enable-dbo",
        "disable-sliding-window",
        "disable-cascade-attn",
        "disable-custom-all-reduce",
        "enable-lora-bias",
        "enable-tower-connector-lora",
        "calculate-kv-scales",
        "disable-hybrid-kv-cache-manager",
        "disable-chunked-mm-input",
    }
)
"""Switches that change timing and are not modelled: refused when on."""

IGNORED = frozenset(
    {
        "host", "port", "uds", "api-key", "served-model-name", "chat-template", "chat-template-content-format",
        "tokenizer", "tokenizer-mode", "tokenizer-revision", "revision", "code-revision", "hf-config-path",
        "hf-token", "config-format", "download-dir", "load-format", "model-loader-extra-config", "seed",
        "uvicorn-log-level", "tool-call-parser", "tool-parser-plugin", "reasoning-parser", "response-role",
        "allowed-origins", "allowed-methods", "allowed-headers", "allowed-local-media-path", "root-path",
        "middleware", "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "generation-config",
        "override-generation-config", "max-logprobs", "logprobs-mode", "guided-decoding-backend",
        "structured-outputs-config", "max-log-len", "distributed-executor-backend", "swap-space",
        "otlp-traces-endpoint", "collect-detailed-traces", "lora-extra-vocab-size", "long-lora-scaling-factors",
        "limit-mm-per-prompt", "mm-processor-kwargs", "prefix-caching-hash-algo",
        "max-parallel-loading-workers", "ray-workers-use-nsight", "runner", "task", "convert", "model-impl",
        "ignore-patterns", "logits-processor-pattern", "prompt-adapter", "h11-max-incomplete-event-size",
        "h11-max-header-count", "shutdown-timeout",
    }
)  # fmt: skip
"""Flags with a value that do not matter to timing."""

IGNORED_SWITCHES = frozenset(
    {
        "trust-remote-code", "disable-log-requests", "enable-log-requests", "disable-log-stats", "enable-log-outputs",
        "disable-uvicorn-access-log", "disable-fastapi-docs", "enable-auto-tool-choice", "enable-reasoning",
        "allow-credentials", "enable-ssl-refresh", "enable-request-id-headers", "return-tokens-as-token-ids",
        "disable-frontend-multiprocessing", "enable-prompt-tokens-details", "enable-server-load-tracking",
        "enable-force-include-usage", "use-v2-block-manager", "enable-sleep-mode", "use-tqdm-on-load", "headless",
        "enable-tokenizer-info-endpoint", "exclude-tools-when-tool-choice-none", "skip-tokenizer-init",
        "show-hidden-metrics-for-version", "language-model-only", "aggregate-engine-logging",
    }
)  # fmt: skip
"""Switches that do not matter to timing."""

SHORT = MappingProxyType(
    {
        "q": "quantization",
        "O": "optimization-level",
        "cc": "compilation-config",
        "dp": "data-parallel-size",
        "asc": "api-server-count",
        "dcp": "decode-context-parallel-size",
        "ep": "enable-expert-parallel",
    }
)
"""Short spellings other than those above."""

ENVIRONMENT = MappingProxyType(
    {
        "VLLM_USE_V1": ("1", "only the V1 engine is modelled"),
        "VLLM_LORA_ENABLE_DUAL_STREAM": ("0", "LoRA on a second stream is not modelled"),
    }
)
"""Environment variable -> (value that changes nothing, why others are refused)."""
