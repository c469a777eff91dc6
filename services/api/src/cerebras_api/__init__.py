"""The HTTP API of the Cerebras Cloud emulator."""
