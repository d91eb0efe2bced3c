"""Algorithmic creativity: inventing valid combinations that were not in the training data."""
