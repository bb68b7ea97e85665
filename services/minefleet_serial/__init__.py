"""All roles in one process, in order, for the debugger."""
