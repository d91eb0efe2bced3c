"""Gaussian processes, shallow and deep: kernels, sparse layers, approximate posteriors, data and predictive metrics."""
