"""The passes, in the order in which `compiler.pipeline` runs them: precision, partition, match, schedule."""
