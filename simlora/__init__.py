"""simlora: simulate and plan the serving of many LoRA adapters on shared base models."""

__version__ = "0.1.0"
