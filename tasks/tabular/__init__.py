"""Real tables: loading, encoding, splitting."""
