"""What a running process tells: its log, its metrics, its checkpoints."""
