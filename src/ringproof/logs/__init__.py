"""What a run's logs prove: `report` on process groups, and `training` on two training logs."""
