"""Routing under constraints: instances, exact and learned solvers, lazy masking."""
