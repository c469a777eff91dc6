"""The embedded cluster: Valkey, the API and the workers as processes of this machine, on the loopback only.

Read in the order of `cerebras-cloud up`: `commands`, `home`, `services`, `supervisor`; `processes` and `health`
are what they stand on; `shutdown` and `status` look at a home from outside.
"""
