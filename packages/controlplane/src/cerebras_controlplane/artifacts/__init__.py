"""Artifacts: found by their input key, kept by their artifact key."""
