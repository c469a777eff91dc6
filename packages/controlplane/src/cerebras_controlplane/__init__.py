"""Jobs, queues, artifacts and telemetry of the Cerebras Cloud emulator."""
