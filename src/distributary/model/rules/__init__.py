"""The rules for rows that the pipeline file has, as the planner and the tasks use them."""
