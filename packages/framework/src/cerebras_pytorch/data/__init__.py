"""The data path: from the user's loader to batches of one fixed shape."""
