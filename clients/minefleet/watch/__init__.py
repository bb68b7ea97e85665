"""The page that people watch runs on, and its read-only JSON API. `docs/watch.md` has both."""
