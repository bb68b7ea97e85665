"""Tools that look into a store while replay does not run."""
