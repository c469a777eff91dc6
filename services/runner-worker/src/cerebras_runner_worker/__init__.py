"""The run worker: runs the user's script on an artifact."""
