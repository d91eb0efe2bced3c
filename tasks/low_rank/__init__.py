"""Low-rank attention projections: calibration, factorisations, Fisher-weighted fine-tuning, factorised layers and checkpoints."""
