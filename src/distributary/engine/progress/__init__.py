"""What is written beside the tables so that a run can go on: progress, its owner, its repair."""
