"""S-LoRA: prompts and decodes apart, a worst-case memory test, one pool of KV rows and adapters."""
