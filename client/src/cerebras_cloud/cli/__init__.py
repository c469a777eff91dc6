"""The command line `cerebras-cloud`: `main` first, then one module a group of commands."""
