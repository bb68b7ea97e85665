"""Videos: from what a slot shows to a file that plays."""
