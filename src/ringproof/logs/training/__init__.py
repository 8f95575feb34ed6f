"""Training logs: `read` one with the readers in `formats`; `compare` two of them.

A comparison is made in steps: `align` the series and find the first difference, say of what `kind`
it is, and put it into words (`output`). `curves` judges one log by itself.
"""
