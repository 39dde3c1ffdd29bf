"""`demo`: what is simulated, how it is played, and what came of it."""
