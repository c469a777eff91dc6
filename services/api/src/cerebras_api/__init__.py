"""The HTTP API: thin routes over the control plane. `app` builds it, `routes` are its domains."""
