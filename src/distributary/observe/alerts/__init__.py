"""Alerts: what is worth telling people, when it is over, and how it reaches them."""
