"""The compiler: from a captured training step to an artifact.

`pipeline.compile_step` is the list of passes; `emit.write_artifact` writes what they leave.
"""
