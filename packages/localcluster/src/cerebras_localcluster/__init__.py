"""The embedded cluster of the Cerebras Cloud emulator."""
