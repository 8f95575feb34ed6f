"""What ringproof and its ranks hand each other: a program, reports, and a board of waits."""
