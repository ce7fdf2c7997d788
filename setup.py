"""Only for the optional compiled build; everything else is in pyproject.toml.

SIMLORA_COMPILE=1 pip install . compiles the hot path of the simulator with mypyc. It needs a C compiler and Python's
headers; pip brings mypyc. The modules stay ordinary Python: the compiled build gives the same results, only faster. It
is not for editable installs, where stale compiled modules would shadow edited sources.
"""

import os
import tomllib
from pathlib import Path

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

ext_modules, build_needs = [], []
if os.environ.get("SIMLORA_COMPILE") == "1":
    project = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())["project"]
    build_needs = ["mypy>=1.11", "types-PyYAML", *project["dependencies"]]  # mypyc reads the types of what is imported
    try:
        from mypyc.build import mypycify
    except ImportError:  # pip asks what the build needs before it brings it
        pass
    else:
        ext_modules = mypycify(HOT_PATH, opt_level="3")

setup(ext_modules=ext_modules, setup_requires=build_needs)
