"""Which context parallelism the logs of a run show.

`observed` collects what all lines say, `decision` has the rules of the verdict, `expectation` what
the user wants to see, `findings` what speaks against the run; `judge` does all of it.
"""
