"""Kernels that decode from caches of latents: numba for CPUs, Triton for GPUs, and the formulas that both are held against."""
