"""Bytes, keyed by their digest."""
