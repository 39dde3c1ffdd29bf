"""What the documentation site takes from the code while it is built."""
