"""Only for the optional compiled build; everything else is in pyproject.toml.

SIMLORA_COMPILE=1 pip install --no-build-isolation . compiles the hot path of the simulator with mypyc (it needs mypy
and a C compiler). The modules stay ordinary Python: the compiled build gives the same results, only faster.
"""

import os

from setuptools import setup

HOT_PATH = [
    "simlora/engines/adapter_slots.py",
    "simlora/engines/decode_batch.py",
    "simlora/engines/held_queue.py",
    "simlora/engines/kv_blocks.py",
    "simlora/engines/lane_slots.py",
    "simlora/engines/prefix_cache.py",
    "simlora/engines/request.py",
    "simlora/engines/speculative.py",
    "simlora/engines/vllm.py",
    "simlora/engines/vllm_lanes.py",
    "simlora/engines/vllm_overlap.py",
    "simlora/engines/vllm_ranks.py",
    "simlora/engines/waiting.py",
    "simlora/latency/step.py",
    "simlora/memory/eviction.py",
    "simlora/memory/resident.py",
    "simlora/memory/tiers.py",
    "simlora/sim/epoch.py",
    "simlora/sim/pipeline.py",
    "simlora/sim/replica.py",
]

ext_modules = []
if os.environ.get("SIMLORA_COMPILE") == "1":
    from mypyc.build import mypycify

    ext_modules = mypycify(HOT_PATH, opt_level="3")

setup(ext_modules=ext_modules)
