"""Offline reinforcement learning: transitions, collectors, fitted Q iteration, rollouts."""
