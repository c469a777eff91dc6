"""The simulator: loads an artifact, executes its programs on this machine's processor, and keeps device time."""
