"""Decoding kernels that read only chosen keys: numba on a CPU, Triton on a GPU, torch anywhere."""
