"""An environment process: a worker of an actor's pool. Runs under any Python from 3.8 on that has NumPy."""
