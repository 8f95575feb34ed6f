"""Inside a rank: stand-ins and probes put in place, upstream's script run, a report written."""
