"""One stage, from claim to end: what the compile worker and the run worker share.

`loop` claims, `stage` runs what was claimed, with `lease` beside it; `pump` carries what the process leaves.
"""
