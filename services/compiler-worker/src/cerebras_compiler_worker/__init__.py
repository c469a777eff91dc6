"""The compile worker: runs the user's script up to `compile`, and keeps the artifact it leaves."""
