"""Sparse attention for decoding: selection of keys, budgets with guarantees, predictors, baselines and kernels."""
