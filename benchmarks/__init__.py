"""Measurements that people run by hand (`make bench`); nothing in the tests is timed."""
