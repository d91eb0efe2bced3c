"""Papers whose results are not recorded yet."""
