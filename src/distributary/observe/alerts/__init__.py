"""Alerts: the rules that raise and resolve them, and the delivery of notices to people."""
