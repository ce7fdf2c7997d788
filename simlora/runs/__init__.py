"""Recorded runs in the format simlora-run/1: read and written here alone."""
