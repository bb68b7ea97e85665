"""MineStudio's own policies."""
