"""The planner: does a training step fit, how fast is it, and what does it cost, on which systems, at which batch."""
