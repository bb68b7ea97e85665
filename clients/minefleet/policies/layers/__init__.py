"""The layers of policies."""
