"""Papers whose first results are not in yet; the collection does not list them."""
