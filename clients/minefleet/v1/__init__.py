"""Wire types, generated from `protos/`. Never edited."""
