"""Errors, trees, schemas, fragments, files and processes: imports no other part of the library."""
