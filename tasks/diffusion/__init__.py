"""Diffusion models of vectors: noise schedules, a denoiser for tabular data, its training, and ancestral reverse chains."""
