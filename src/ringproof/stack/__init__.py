"""What an upstream tree is: product, line for each card, and the statements that hold in it."""
