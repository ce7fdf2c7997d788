"""GPU time of LoRA kernels by family: a file for each kind of algorithm, one protocol (base.py), one choice."""
