"""Compiler and simulator of a wafer-scale engine.

`compiler` turns a captured training step into an artifact; `simulator` loads and executes one.
"""
