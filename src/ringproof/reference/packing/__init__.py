"""Which tokens sit on which rank. Pure integers."""
