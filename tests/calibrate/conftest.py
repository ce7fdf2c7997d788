"""Tests of calibrate run without a GPU: Triton's interpreter takes its place where torch finds none."""

from __future__ import annotations

import importlib.util
import os

if importlib.util.find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)  # tiny shapes: threads would only wait for one another

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported
