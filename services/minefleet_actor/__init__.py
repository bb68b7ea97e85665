"""The actor: inference over a pool of environments, recorded as fragments."""
