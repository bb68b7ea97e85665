"""Parameters: versioned weights, published whole and pulled by actors."""
