"""Hop two, after decoding: what happens to rows before they are written."""
