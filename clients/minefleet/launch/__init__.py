"""Starting a run on this machine: the checks before it, its addresses, and the supervisor of its processes."""
