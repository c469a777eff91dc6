"""The compile worker of the Cerebras Cloud emulator."""
