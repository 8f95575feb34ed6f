"""Finds the first cause in the logs of a failed or slow run, and the pitfall that explains it.

`prefix` says who wrote a line, `errors` finds errors in the lines, `recorder` reads dumps,
`symptoms` is the index of what upstream prints, `cause` decides, and `output` puts it into words.
"""
