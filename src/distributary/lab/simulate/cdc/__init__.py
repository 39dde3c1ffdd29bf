"""Changes of a simulated database, as the systems that watch databases tell of them."""
