"""Two training logs side by side. Reading order: ``source`` (a log's lines, and of which format
they are), ``series`` (what is looked for, and its values by step), ``log`` (the three formats),
``verdict`` (how far two series lie apart, and what kind of difference that is), ``comparison`` (the
whole, with remarks, and as JSON) and ``drawing`` (the points of a picture).
"""
