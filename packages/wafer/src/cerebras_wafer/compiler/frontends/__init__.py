"""What the compiler takes: a training step as functional ATen graphs, however it was captured."""
