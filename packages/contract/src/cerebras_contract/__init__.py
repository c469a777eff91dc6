"""The shape of everything that crosses a process boundary: models and constants, no behaviour of a service.

Read in the order a job meets them: `configuration` (run.yaml), `systems` (the machine), `jobs` (what is
submitted), `run_directory` and `events` (what a user's process leaves behind), `artifacts` (what compile
leaves), `checkpoints`, `wire` (what the HTTP API answers), `errors`.
"""
