"""Compiler and simulator of a wafer-scale engine."""
