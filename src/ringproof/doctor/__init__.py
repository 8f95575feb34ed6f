"""Examines the configuration of a training job before it starts.

The settings are read and never executed. Rules of the skills are applied to them for the line of
upstream that will run.
"""
