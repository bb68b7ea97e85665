"""State in memory, without I/O."""
