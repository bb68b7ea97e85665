"""Collapses that are planted are recognised, and nothing in healthy runs is taken for one."""
