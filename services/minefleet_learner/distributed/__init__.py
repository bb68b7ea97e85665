"""Process groups of several learner ranks."""
