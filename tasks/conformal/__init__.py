"""Prediction sets with guaranteed coverage: conformal quantiles, corrupted labels, privileged information."""
