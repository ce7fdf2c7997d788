"""LoRAX: queues per adapter, an active set in turns, a loader that holds the shard."""
