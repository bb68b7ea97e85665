"""The gRPC server of a role: who may call it, how errors become statuses, and its own services."""
