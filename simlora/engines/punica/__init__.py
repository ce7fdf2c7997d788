"""Punica: one prompt a step with all decodes, one rank, adapters loaded on demand."""
