"""Python SDK and command line of the Cerebras Cloud emulator."""
