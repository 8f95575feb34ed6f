"""What a run's logs prove. Reading order: ``lines`` (the lines that matter out of gigabytes),
``nccl`` and ``configuration`` (what one line says), ``facts`` (what all lines say together),
``verdict`` (which CP was active), ``findings`` (what is wrong or should be known), ``reader`` (the
whole) and ``report`` (how it is told). ``training`` compares two training logs.
"""
