"""Is this a valid, safe, well-formed skill? Rules for any repository of agent skills.

Everything read here comes from people we do not know: it is bounded in size, never executed, and
shown only with its control and invisible characters spelled out.
"""
