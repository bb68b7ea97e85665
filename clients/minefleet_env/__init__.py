"""An environment process: a worker of an actor's pool.

This package is the standard library and NumPy, in the syntax of Python 3.8, so that an environment may live under
another interpreter than the fleet's. It imports nothing else of the fleet; what crosses is `layout` and `frames`.
"""
