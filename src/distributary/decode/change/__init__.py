"""What the decoders of all kinds of change events share."""
