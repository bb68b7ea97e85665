"""Sweeps: several runs of one configuration, each with other values of some keys."""
