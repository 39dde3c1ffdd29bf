"""What the commands do. A module is imported when its command is invoked."""
