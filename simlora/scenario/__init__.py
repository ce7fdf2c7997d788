"""Scenarios: YAML files (or mappings) become frozen, checked models with every default resolved."""
