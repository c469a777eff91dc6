"""Models built under `torch.device("meta")`: their initialisers are recorded, and replayed into given memory."""
