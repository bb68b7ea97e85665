"""Weights as they travel and lie on disk: manifests, downloads, and the refusal that asks for more. Free of torch."""
