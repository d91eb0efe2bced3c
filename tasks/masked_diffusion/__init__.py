"""Text by masked diffusion: the model and its loss, schedulers that decide which tokens to commit, states kept between calls."""
