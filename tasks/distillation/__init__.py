"""Data set distillation: a few synthetic rows that stand for a whole training set."""
