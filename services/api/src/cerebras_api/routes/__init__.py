"""The routes, one module a domain; each answers from the control plane and decides nothing itself."""
