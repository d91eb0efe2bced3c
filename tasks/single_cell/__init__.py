"""Single-cell expression: cohorts, preprocessing, denoising by a latent diffusion prior, and its baselines and metrics."""
