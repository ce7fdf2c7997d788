"""Kernels run on the GPU where there is one, else under Triton's interpreter; without torch or triton they are
skipped."""

from __future__ import annotations

import importlib.util
import os

missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
collect_ignore = ["test_lora_kernels.py", "test_layouts.py", "test_segments_and_shards.py"] if missing else []

if not missing:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
