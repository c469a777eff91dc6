"""Jobs and their stages: submitted, claimed by a worker, ended. `state` changes every status."""
