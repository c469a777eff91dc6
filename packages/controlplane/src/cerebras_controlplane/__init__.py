"""Jobs, queues, artifacts and telemetry, shared by the API and the workers.

Read in the order a job meets them: `uploads` (the bundle), `jobs` (submit, claim, states), `queue` (the
doorbell), `worker` (one stage from claim to end), `sandbox` (the user's process), `telemetry` (its log,
metrics and checkpoints), `artifacts` (what compile leaves). `models` and `db` hold all state, `storage` all
bytes.
"""
