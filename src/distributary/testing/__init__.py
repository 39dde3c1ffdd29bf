"""Fakes that behave: the in-memory twins of the seams, for our tests and for yours."""
