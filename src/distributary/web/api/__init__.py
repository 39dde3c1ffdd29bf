"""What the page asks for, one module for each kind of thing."""
