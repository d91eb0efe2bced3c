"""Low-precision numbers for weights and activations: quantisers, rotations against outliers, training through rounding."""
