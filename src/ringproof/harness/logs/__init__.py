"""What a run's logs prove. Reading order: ``lines`` (the lines that matter out of gigabytes),
``nccl`` and ``configuration`` (what one line says), ``ledgers`` (what all lines say together),
``groups`` (the groups that follow), ``verdict`` and ``consistency`` (which CP was active),
``reader`` (the whole) and ``report`` (how it is told).
"""
