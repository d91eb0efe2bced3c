"""Reinforcement learning: advantages, policy updates, rollouts and how attempts are counted."""
