"""What can be typed. Nothing heavy is imported here: help and completion answer at once."""
