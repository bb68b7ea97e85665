"""Forward passes that make what is trained on: values, reference states, minibatches."""
