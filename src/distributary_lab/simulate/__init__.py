"""The simulators: seeded, repeatable streams to develop, test, measure and show with."""
