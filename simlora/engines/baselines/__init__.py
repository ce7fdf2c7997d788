"""The naive ways: one adapter per batch, one kernel pair per adapter, one merged adapter at a time."""
