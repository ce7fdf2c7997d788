"""Measures a CUDA GPU, so that the latency model can be fitted to its kernels, copies and links."""
