"""Bundles: checked when they arrive, unpacked where they run."""
