"""Permits and uploads: the connection of each slot to its replay shard."""
