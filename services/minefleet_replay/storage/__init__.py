"""RocksDB and the log of payloads."""
