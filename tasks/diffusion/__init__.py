"""Diffusion processes, schedules and samplers, whatever they generate."""
