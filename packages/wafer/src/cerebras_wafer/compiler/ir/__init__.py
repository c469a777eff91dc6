"""The kernel graph: what the compiler works on between the captured graphs and the plan."""
