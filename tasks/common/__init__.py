"""What every domain shares: the node contract, statistics of repeated runs, file formats, plotting style, parallel seeds."""
