"""Reinforcement learning: advantages, losses and loops, whatever the environment."""
