"""One module per paper: what it claims, what its stages are, which nodes they bind and where it deviates."""
