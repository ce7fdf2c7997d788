"""Only for the optional compiled build; everything else is in pyproject.toml.

SIMLORA_COMPILE=1 pip install --no-build-isolation . compiles the hot path of the simulator with mypyc (it needs mypy
and a C compiler). The modules stay ordinary Python: the compiled build gives the same results, only faster.
"""

import os

from setuptools import setup

HOT_PATH = [
    "simlora/engines/vllm/loop.py",
    "simlora/engines/vllm/run_state.py",
    "simlora/engines/vllm/adapter_slots.py",
    "simlora/engines/vllm/batch.py",
    "simlora/engines/vllm/kv_blocks.py",
    "simlora/engines/vllm/lane_slots.py",
    "simlora/engines/vllm/lanes.py",
    "simlora/engines/vllm/overlap.py",
    "simlora/engines/vllm/pipeline.py",
    "simlora/engines/vllm/prefix_cache.py",
    "simlora/engines/vllm/replica.py",
    "simlora/engines/vllm/scheduler.py",
    "simlora/engines/vllm/speculative.py",
    "simlora/engines/vllm/waiting.py",
    "simlora/engines/decode_batch.py",
    "simlora/engines/epoch.py",
    "simlora/engines/request_columns.py",
    "simlora/engines/run_log.py",
    "simlora/latency/step.py",
    "simlora/memory/residents.py",
]

ext_modules = []
if os.environ.get("SIMLORA_COMPILE") == "1":
    from mypyc.build import mypycify

    ext_modules = mypycify(HOT_PATH, opt_level="3")

setup(ext_modules=ext_modules)
