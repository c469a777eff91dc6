"""The PyTorch front end of the Cerebras Cloud emulator."""
