"""What the logs of a run prove.

`groups` says which context parallelism was active, `diagnosis` why a run failed, and `training`
where two trainings part and whether a curve is conspicuous. `lines` opens every log, `parsing`
reads what one line says, and `rendering` fills the templates of what is printed.
"""
