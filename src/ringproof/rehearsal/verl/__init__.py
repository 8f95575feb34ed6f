"""Launches of verl, rehearsed with verl's own engine on Megatron.

`rehearsing` is the entry point, `upstreams` opens verl and Megatron-Bridge, `config` lets hydra
compose the launch's configuration, `model` chooses a tiny model of the same family, and `metrics`
names what verl logs differently where the training is the same. ``ranks`` runs in the ranks.
"""
