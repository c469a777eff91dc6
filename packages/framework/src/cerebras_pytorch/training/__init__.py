"""Training from an artifact: the compiled model, the steps of the user's loop, checkpoints and metrics."""
