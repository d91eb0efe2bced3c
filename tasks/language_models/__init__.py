"""Language models as data: loading, caches, texts, scores and timing."""
