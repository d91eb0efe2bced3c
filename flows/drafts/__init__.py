"""Declarations of papers whose results are not recorded yet: no part of the collection until they move up."""
