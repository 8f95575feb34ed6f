"""What runs in the ranks of a rehearsal of verl; only there its imports exist."""
