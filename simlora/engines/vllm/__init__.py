"""vLLM V1: one scheduler, KV blocks and adapter slots; pipeline lanes, overlapped loads and other kernels on top."""
