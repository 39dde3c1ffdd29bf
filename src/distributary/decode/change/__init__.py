"""Change events: the formats, and the decoder of each."""
