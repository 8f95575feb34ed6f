"""Which context parallelism the logs of a run show: `observed` reads, `decision` has the rules."""
