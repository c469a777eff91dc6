"""Capture: from a user's modules, optimizer and first batch to functional graphs, by torch.export and AOTAutograd."""
