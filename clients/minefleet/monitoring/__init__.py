"""Status, bottlenecks and curves of a run."""
