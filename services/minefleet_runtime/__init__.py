"""What services share: serving and draining, health, metrics, logging, and the start of a role."""
