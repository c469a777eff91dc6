"""The user's process: what it may see, how it starts, how it ends."""
