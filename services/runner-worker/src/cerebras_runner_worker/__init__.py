"""The run worker of the Cerebras Cloud emulator."""
